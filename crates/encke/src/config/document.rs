//! The text of a configuration file as TOML.

use toml::Table;

/// Reads a configuration file. An error names the place of a mistake and does not show it: the line may hold a secret, and what the
/// server prints is kept in logs.
pub(super) fn parse(text: &str) -> anyhow::Result<Table> {
    text.parse::<Table>().map_err(|error: toml::de::Error| {
        let message = error.message();
        match error.span() {
            Some(span) => {
                let before = text.get(..span.start).unwrap_or(text);
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or_default();
                let column = column.chars().count() + 1;
                anyhow::anyhow!("TOML parse error at line {line}, column {column}: {message}")
            }
            None => anyhow::anyhow!("TOML parse error: {message}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_by_its_place_and_not_shown() {
        let secret = "correct-horse-battery-staple";
        for text in [
            "secret = 'SECRET",
            "secret = \"SECRET",
            "secret = \"\"\"SECRET",
            "secret = SECRET",
            "secret = \"SEC\\RET\" SECRET",
            "secret = 'a' SECRET",
            "secret SECRET",
            "SECRET",
            "[SECRET",
            "secret = ['SECRET' 'SECRET']",
            "secret = { SECRET",
            "secret = '1'\nSECRET = 1\nSECRET = 2",
            "secret.SECRET = 1\nsecret = 'SECRET'",
            "a = 1\n\n  x = 2026-99-99SECRET",
        ] {
            let text = text.replace("SECRET", secret);
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains("line "), "{error}");
            let shown = secret.split('-').any(|part| error.contains(part));
            assert!(!shown, "{text}: {error}");
        }
        let error = parse("a = 1\nb = 'x").unwrap_err().to_string();
        assert!(
            error.starts_with("TOML parse error at line 2, column "),
            "{error}"
        );
    }
}
