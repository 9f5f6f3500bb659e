//! The `data` lines of server-sent events (HTML, section 9.2.6).

/// Writes a payload as `data` lines, in parts.
#[derive(Clone, Debug)]
pub(crate) struct DataLines(LineState);

/// Where in its lines a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// A line is to begin.
    Begin,
    /// The same, and a line feed that follows belongs to the end of the last line.
    BeginBehindReturn,
    /// Inside a line.
    Inside,
}

impl DataLines {
    /// The first line is to begin.
    pub(crate) fn begin() -> Self {
        DataLines(LineState::Begin)
    }

    /// The first line has begun.
    pub(crate) fn inside() -> Self {
        DataLines(LineState::Inside)
    }

    /// Writes further bytes of the payload.
    pub(crate) fn write(&mut self, part: &[u8], out: &mut Vec<u8>) {
        let mut rest = part;
        while let Some(first) = rest.first() {
            if self.0 == LineState::BeginBehindReturn && *first == b'\n' {
                self.0 = LineState::Begin;
                rest = &rest[1..];
                continue;
            }
            if self.0 != LineState::Inside {
                out.extend_from_slice(b"data:");
                if *first == b' ' {
                    // Readers drop one space behind the colon.
                    out.push(b' ');
                }
                self.0 = LineState::Inside;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                out.extend_from_slice(rest);
                return;
            };
            out.extend_from_slice(&rest[..end]);
            out.push(b'\n');
            self.0 = match rest[end] {
                b'\r' => LineState::BeginBehindReturn,
                _ => LineState::Begin,
            };
            rest = &rest[end + 1..];
        }
    }

    /// Begins the last line if nothing of it is written. The line feed that ends it must follow.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.0 != LineState::Inside {
            out.extend_from_slice(b"data:");
            self.0 = LineState::Inside;
        }
    }
}
