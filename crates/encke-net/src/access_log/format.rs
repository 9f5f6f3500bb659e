//! Entries as lines.

use std::io::Write;

use super::AccessEntry;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// A JSON object.
    Json,
    /// The Combined Log Format of Apache and nginx.
    Combined,
}

/// Writes entries as lines. It keeps the text of the last second, because formatting a date takes longer than all the rest.
#[derive(Debug)]
pub(super) struct Formatter {
    format: AccessLogFormat,
    second: Option<u64>,
    /// The second: for JSON without what follows it.
    time: String,
}

impl Formatter {
    pub(super) fn new(format: AccessLogFormat) -> Formatter {
        Formatter {
            format,
            second: None,
            time: String::new(),
        }
    }

    /// Appends the line of an entry.
    pub(super) fn line(&mut self, entry: &AccessEntry, out: &mut Vec<u8>) {
        self.tell_time(entry.ended_us / 1_000_000);
        // Writing to a vector does not fail.
        let _ = match self.format {
            AccessLogFormat::Json => self.json(entry, out),
            AccessLogFormat::Combined => self.combined(entry, out),
        };
        out.push(b'\n');
    }

    fn json(&self, entry: &AccessEntry, out: &mut Vec<u8>) -> std::io::Result<()> {
        let text = &entry.text;
        let us = entry.ended_us % 1_000_000;
        write!(out, "{{\"time\":\"{}.{us:06}Z\",\"client\":", self.time)?;
        match entry.client {
            Some(client) => write!(out, "\"{client}\"")?,
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"caller\":");
        json_text(text.caller(), out);
        out.extend_from_slice(b",\"method\":");
        json_text(text.method(), out);
        out.extend_from_slice(b",\"path\":");
        json_text(text.target(), out);
        match entry.version {
            Some(version) => write!(out, ",\"protocol\":\"HTTP/{}\"", number(version))?,
            None => out.extend_from_slice(b",\"protocol\":null"),
        }
        let (ms, us) = (entry.duration_us / 1000, entry.duration_us % 1000);
        write!(
            out,
            ",\"status\":{},\"bytes\":{},\"duration_ms\":{ms}.{us:03},\"end\":\"{}\",\"request_id\":",
            entry.status, entry.body_bytes, entry.end
        )?;
        json_text(text.request_id(), out);
        match entry.trace {
            Some(trace) => write!(out, ",\"trace_id\":\"{trace}\"")?,
            None => out.extend_from_slice(b",\"trace_id\":null"),
        }
        out.extend_from_slice(b",\"user_agent\":");
        json_text(text.user_agent(), out);
        out.extend_from_slice(b",\"referer\":");
        json_text(text.referer(), out);
        out.push(b'}');
        Ok(())
    }

    fn combined(&self, entry: &AccessEntry, out: &mut Vec<u8>) -> std::io::Result<()> {
        let text = &entry.text;
        match entry.client {
            Some(client) => write!(out, "{client}")?,
            None => out.push(b'-'),
        }
        out.extend_from_slice(b" - ");
        word(text.caller(), out);
        write!(out, " [{} +0000] \"", self.time)?;
        match (text.method(), text.target()) {
            (Some(method), Some(target)) => {
                hex_escaped(method, out);
                out.push(b' ');
                hex_escaped(target, out);
                if let Some(version) = entry.version {
                    write!(out, " HTTP/{}", number(version))?;
                }
            }
            _ => out.push(b'-'),
        }
        write!(out, "\" {} {}", entry.status, entry.body_bytes)?;
        for field in [text.referer(), text.user_agent()] {
            out.extend_from_slice(b" \"");
            hex_escaped(field.unwrap_or(b"-"), out);
            out.push(b'"');
        }
        Ok(())
    }

    fn tell_time(&mut self, second: u64) {
        if self.second == Some(second) {
            return;
        }
        self.second = Some(second);
        let form = match self.format {
            AccessLogFormat::Json => "%Y-%m-%dT%H:%M:%S",
            AccessLogFormat::Combined => "%d/%b/%Y:%H:%M:%S",
        };
        // A clock that is beyond all calendars is shown as 1970.
        let time = i64::try_from(second)
            .ok()
            .and_then(|second| jiff::Timestamp::from_second(second).ok());
        self.time = time.unwrap_or_default().strftime(form).to_string();
    }
}

/// The number of a version of HTTP, of which an entry has the minor one or 2.
fn number(version: u8) -> &'static str {
    match version {
        0 => "1.0",
        1 => "1.1",
        _ => "2.0",
    }
}

/// Appends a string of JSON, or `null`. All but visible ASCII is escaped, so that a client can neither end a line, in any
/// reading of what a line is, nor send controls to a terminal. What is not UTF-8 becomes U+FFFD.
pub(crate) fn json_text(text: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(text) = text else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
                ' '..='~' => out.push(character as u8),
                other => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
    out.push(b'"');
}

/// Appends a text as one word, or `-`: as [`hex_escaped`], and blanks are escaped too. A name that is `-` itself is told apart.
fn word(text: Option<&[u8]>, out: &mut Vec<u8>) {
    match text {
        None => out.push(b'-'),
        Some(b"-") => out.extend_from_slice(b"\\x2D"),
        Some(text) => {
            for part in text.split_inclusive(|byte| *byte == b' ') {
                match part.strip_suffix(b" ") {
                    None => hex_escaped(part, out),
                    Some(before) => {
                        hex_escaped(before, out);
                        out.extend_from_slice(b"\\x20");
                    }
                }
            }
        }
    }
}

/// Appends a text with `\xHH` for quotes, backslashes, controls and all bytes that are not ASCII, as nginx does.
pub(crate) fn hex_escaped(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\x{byte:02X}");
            }
            _ => out.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access_log::RequestText;

    fn entry(text: RequestText) -> AccessEntry {
        AccessEntry {
            ended_us: 1_700_000_000_000_042,
            duration_us: 12_003,
            client: Some([192, 0, 2, 1].into()),
            status: 200,
            body_bytes: 5,
            version: Some(1),
            trace: None,
            end: "complete",
            text,
        }
    }

    fn line(format: AccessLogFormat, entry: &AccessEntry) -> String {
        let mut out = Vec::new();
        Formatter::new(format).line(entry, &mut out);
        String::from_utf8(out).expect("lines are ASCII")
    }

    #[test]
    fn lines_have_the_forms_that_tools_know() {
        let mut text = RequestText::new(
            b"GET",
            (b"/a", Some(b"b=\"")),
            b"curl/8",
            b"http://r/",
            b"i",
        );
        text.set_caller("ann b");
        let entry = entry(text);
        assert_eq!(
            line(AccessLogFormat::Combined, &entry),
            "192.0.2.1 - ann\\x20b [14/Nov/2023:22:13:20 +0000] \"GET /a?b=\\x22 HTTP/1.1\" 200 5 \
             \"http://r/\" \"curl/8\"\n"
        );
        assert_eq!(
            line(AccessLogFormat::Json, &entry),
            "{\"time\":\"2023-11-14T22:13:20.000042Z\",\"client\":\"192.0.2.1\",\"caller\":\"ann b\",\"method\":\"GET\",\
             \"path\":\"/a?b=\\\"\",\"protocol\":\"HTTP/1.1\",\"status\":200,\"bytes\":5,\
             \"duration_ms\":12.003,\"end\":\"complete\",\"request_id\":\"i\",\"trace_id\":null,\
             \"user_agent\":\"curl/8\",\"referer\":\"http://r/\"}\n"
        );
        let nothing = AccessEntry {
            client: None,
            version: None,
            ..self::entry(RequestText::default())
        };
        let line = line(AccessLogFormat::Combined, &nothing);
        assert!(line.starts_with("- - - ["), "{line}");
        assert!(line.ends_with("\"-\" 200 5 \"-\" \"-\"\n"), "{line}");
    }

    proptest! {
        /// Whatever a client sends, its line is one line of visible ASCII, and in JSON the texts read back.
        #[test]
        fn no_text_forges_a_line(
            method in "[\\PC\u{0}-\u{9f}\u{2028}]{1,6}",
            path in prop::collection::vec(any::<u8>(), 1..40),
            agent in prop::collection::vec(any::<u8>(), 1..40),
            caller in "[ \\[\"\\\\\\-\\PC\u{0}-\u{9f}\u{2028}]{1,9}",
        ) {
            let mut text = RequestText::new(method.as_bytes(), (&path, None), &agent, &agent, b"");
            text.set_caller(&caller);
            let entry = entry(text);
            for format in [AccessLogFormat::Json, AccessLogFormat::Combined] {
                let line = line(format, &entry);
                let (content, end) = line.split_at(line.len() - 1);
                prop_assert_eq!(end, "\n");
                prop_assert!(content.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", line);
            }
            let json = line(AccessLogFormat::Json, &entry);
            let read: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
            prop_assert_eq!(read["path"].as_str().unwrap(), String::from_utf8_lossy(&path));
            prop_assert_eq!(read["user_agent"].as_str().unwrap(), String::from_utf8_lossy(&agent));
            prop_assert_eq!(read["caller"].as_str().unwrap(), caller);
            let combined = line(AccessLogFormat::Combined, &entry);
            let fourth = combined.split(' ').nth(3).unwrap_or_default();
            prop_assert!(fourth.starts_with('['), "the caller is one word: {}", combined);
            // Three quoted texts, and no other quotes.
            prop_assert_eq!(combined.matches('"').count(), 6);
        }
    }
}
