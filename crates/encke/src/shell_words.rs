//! Words of commands that are printed to be pasted.

use std::path::Path;

/// A path or a name as a word of a shell.
pub(crate) fn quoted(word: impl AsRef<Path>) -> String {
    let word = word.as_ref().display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@,=".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, shown) in [
            ("/etc/encke.toml", "/etc/encke.toml"),
            ("it's", "'it'\\''s'"),
            ("a b", "'a b'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
