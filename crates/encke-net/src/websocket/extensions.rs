//! The list of the field Sec-WebSocket-Extensions (RFC 6455, section 9.1).

use std::borrow::Cow;

/// An extension that a client offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionOffer<'a> {
    /// The registered name.
    pub(crate) name: &'a str,
    /// The parameters in their order.
    pub(crate) parameters: Vec<Parameter<'a>>,
}

/// A parameter of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter<'a> {
    /// The name.
    pub(crate) name: &'a str,
    /// The value, without quotes; it is a token. `None`: the parameter has no value.
    pub(crate) value: Option<Cow<'a, str>>,
}

/// Appends the offers of one field's value. Empty list members are skipped (RFC 9110, section 5.6.1). `None`: the value does not
/// follow the grammar.
pub(crate) fn parse<'a>(value: &'a [u8], offers: &mut Vec<ExtensionOffer<'a>>) -> Option<()> {
    let mut rest = Scanner(value);
    loop {
        rest.skip_whitespace();
        if !matches!(rest.peek(), None | Some(b',')) {
            offers.push(parse_offer(&mut rest)?);
        }
        match rest.next() {
            None => return Some(()),
            Some(b',') => {}
            Some(_) => return None,
        }
    }
}

/// Parses a list of tokens, as in Sec-WebSocket-Protocol, Connection and Upgrade. Empty members are skipped. `None`: the value
/// does not follow the grammar.
pub(crate) fn parse_tokens<'a>(value: &'a [u8], tokens: &mut Vec<&'a str>) -> Option<()> {
    for member in value.split(|byte| *byte == b',') {
        let member = member.trim_ascii();
        if !member.is_empty() {
            tokens.push(token(member)?);
        }
    }
    Some(())
}

fn parse_offer<'a>(rest: &mut Scanner<'a>) -> Option<ExtensionOffer<'a>> {
    let name = rest.take_token()?;
    let mut parameters = Vec::new();
    loop {
        rest.skip_whitespace();
        if !rest.skip(b';') {
            return Some(ExtensionOffer { name, parameters });
        }
        rest.skip_whitespace();
        let name = rest.take_token()?;
        rest.skip_whitespace();
        let value = match rest.skip(b'=') {
            true => {
                rest.skip_whitespace();
                Some(rest.take_value()?)
            }
            false => None,
        };
        parameters.push(Parameter { name, value });
    }
}

/// The rest of a field's value.
struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.next();
        }
        found
    }

    fn skip_whitespace(&mut self) {
        while self.skip(b' ') || self.skip(b'\t') {}
    }

    fn take_token(&mut self) -> Option<&'a str> {
        let length = self
            .0
            .iter()
            .take_while(|byte| is_token_byte(**byte))
            .count();
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        token(taken)
    }

    /// A token, or a quoted string that stands for one.
    fn take_value(&mut self) -> Option<Cow<'a, str>> {
        if !self.skip(b'"') {
            return self.take_token().map(Cow::Borrowed);
        }
        let mut value = String::new();
        loop {
            match self.next()? {
                b'"' if value.is_empty() => return None,
                b'"' => return Some(Cow::Owned(value)),
                byte => {
                    let byte = if byte == b'\\' { self.next()? } else { byte };
                    if !is_token_byte(byte) {
                        return None;
                    }
                    value.push(char::from(byte));
                }
            }
        }
    }
}

/// The bytes as a token (RFC 9110, section 5.6.2); `None` if they are none.
fn token(bytes: &[u8]) -> Option<&str> {
    let is_token = !bytes.is_empty() && bytes.iter().copied().all(is_token_byte);
    std::str::from_utf8(bytes).ok().filter(|_| is_token)
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &str) -> Option<String> {
        let mut offers = Vec::new();
        parse(value.as_bytes(), &mut offers)?;
        let parameter = |Parameter { name, value }: &Parameter<'_>| match value {
            Some(value) => format!(";{name}={value}"),
            None => format!(";{name}"),
        };
        let offer = |offer: &ExtensionOffer<'_>| {
            let parameters: String = offer.parameters.iter().map(parameter).collect();
            format!("{}{parameters}", offer.name)
        };
        Some(offers.iter().map(offer).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn the_grammar_is_followed_strictly() {
        for (value, offers) in [
            ("", ""),
            ("a", "a"),
            (" a\t;\tb = c ; d ,, e;f=\"g\" ,", "a;b=c;d,e;f=g"),
            ("a; b=\"c\\d\"", "a;b=cd"),
            ("a, a; a; a", "a,a;a;a"),
        ] {
            assert_eq!(parsed(value).as_deref(), Some(offers), "{value}");
        }
        for value in [
            ";",
            "a;",
            "a;;b",
            "a b",
            "a=b",
            "a;b=",
            "a;b=\"",
            "a;b=\"\"",
            "a;b=\"c d\"",
            "a;b=\"c",
            "a;b=\"c\\",
            "a;b=\"c\"d",
            "a;=b",
            "\u{e4}",
            "a;b=c=d",
            "a/b",
            "a\0",
        ] {
            assert_eq!(parsed(value), None, "{value}");
        }
    }
}
