//! The table `[access]` of the configuration file.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use encke_access::{Access, AccessConfig, IssuerConfig, QuotasConfig};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::document;
use super::tables::{entries_of, parse, read_file};

/// The table `[access]`, and the folder in which the files that it names are found.
#[derive(Clone, Debug)]
pub(crate) struct AccessTable {
    pub(crate) config: AccessConfig,
    /// The configuration file.
    path: PathBuf,
    folder: PathBuf,
}

impl AccessTable {
    /// Reads the table of the configuration file at `path`. Its lists are read entry by entry, so that a message names the entry.
    pub(crate) fn parse(mut table: Table, path: &Path) -> anyhow::Result<Self> {
        let issuers = entries(&mut table, "issuers")?;
        let api_keys = entries(&mut table, "api-keys")?;
        let signing_keys = entries(&mut table, "signing-keys")?;
        let certificates = entries(&mut table, "certificates")?;
        let quotas = quotas(&mut table)?;
        let mut config: AccessConfig = parse(Value::Table(table), NAME)?;
        config.quotas = quotas;
        config.issuers = issuers;
        config.api_keys = api_keys;
        config.signing_keys = signing_keys;
        config.certificates = certificates;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(AccessTable {
            config,
            path: path.to_owned(),
            folder,
        })
    }

    /// Reads the table of a configuration file, for commands that need nothing else.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = encke_files::read_text(path)
            .with_context(|| format!("the configuration {} can't be read", path.display()))?;
        let wrong = || format!("the configuration {} is wrong", path.display());
        let mut table = document::parse(&text).with_context(wrong)?;
        match table.remove(NAME) {
            Some(Value::Table(access)) => AccessTable::parse(access, path).with_context(wrong),
            _ => anyhow::bail!("the configuration {} has no table [access]", path.display()),
        }
    }

    /// The configuration file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The issuers whose tokens this file can sign, each with its place in the list.
    pub(crate) fn signers(&self) -> impl Iterator<Item = (usize, &IssuerConfig)> {
        let can_sign = |one: &IssuerConfig| {
            one.secret.is_some() || one.secret_file.is_some() || one.private_key_file.is_some()
        };
        let issuers = self.config.issuers.iter().enumerate();
        issuers.filter(move |(_, one)| can_sign(one))
    }

    /// Reads a file that the table names.
    pub(crate) fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        read_file(&self.folder.join(path))
    }

    /// The files that hold secrets, each with the key that names it: the configuration file itself, if secrets are written in it.
    pub(crate) fn secret_files(&self) -> Vec<(String, PathBuf)> {
        let AccessConfig {
            issuers,
            signing_keys,
            ..
        } = &self.config;
        let mut files = Vec::new();
        let is_in_it = issuers.iter().any(|one| one.secret.is_some())
            || signing_keys.iter().any(|one| one.secret.is_some());
        if is_in_it {
            files.push((NAME.to_owned(), self.path.clone()));
        }
        let mut add = |at: String, path: &Option<PathBuf>| {
            files.extend(path.iter().map(|path| (at.clone(), self.folder.join(path))));
        };
        for (at, one) in issuers.iter().enumerate() {
            let key = format!("{NAME}.issuers[{at}]");
            add(format!("{key}.secret-file"), &one.secret_file);
            add(format!("{key}.private-key-file"), &one.private_key_file);
        }
        for (at, one) in signing_keys.iter().enumerate() {
            add(
                format!("{NAME}.signing-keys[{at}].secret-file"),
                &one.secret_file,
            );
        }
        files
    }

    /// The files that the server reads for it, beside the configuration itself.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let AccessConfig {
            issuers,
            signing_keys,
            ..
        } = &self.config;
        let of_issuers = issuers.iter().flat_map(|one| {
            let files = [&one.keys_file, &one.secret_file, &one.public_key_file];
            files.into_iter().flatten()
        });
        let of_keys = signing_keys
            .iter()
            .filter_map(|one| one.secret_file.as_ref());
        let files = of_issuers.chain(of_keys);
        files.map(|path| self.folder.join(path)).collect()
    }

    /// Puts the table in force in the place of another one. Reads the files that it names.
    pub(crate) fn reload(&self, access: &Access) -> anyhow::Result<()> {
        Ok(access.reload(&self.config, &|path| self.file(path))?)
    }

    /// The policy that the table describes. Reads the files that it names.
    pub(crate) fn access(&self) -> anyhow::Result<Access> {
        Ok(Access::from_config(&self.config, &|path| self.file(path))?)
    }

    /// What is configured, in a few words and without secrets.
    pub(crate) fn summary(&self) -> String {
        let AccessConfig {
            anonymous,
            issuers,
            api_keys,
            signing_keys,
            certificates,
            ..
        } = &self.config;
        let mut parts: Vec<String> = [
            (issuers.len(), "issuers of tokens"),
            (api_keys.len(), "API keys"),
            (signing_keys.len(), "keys of signed URLs"),
            (certificates.len(), "client certificates"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        parts.push(match anonymous {
            Some(_) => "anonymous requests as granted".into(),
            None => "no anonymous requests".into(),
        });
        parts.join(", ")
    }
}

/// Takes the table of quotas out of the table `[access]`.
fn quotas(table: &mut Table) -> anyhow::Result<Option<QuotasConfig>> {
    let mut quotas = match table.remove("quotas") {
        None => return Ok(None),
        Some(Value::Table(quotas)) => quotas,
        Some(other) => anyhow::bail!(
            "the key {NAME}.quotas must be a table, [{NAME}.quotas], not a value of type {}",
            other.type_str()
        ),
    };
    let at = format!("{NAME}.quotas");
    let overrides = entries_of(&mut quotas, &at, "overrides")?;
    let config: QuotasConfig = parse(Value::Table(quotas), &at)?;
    Ok(Some(QuotasConfig {
        overrides,
        ..config
    }))
}

/// Takes a list of tables out of the table `[access]`.
fn entries<T: DeserializeOwned>(table: &mut Table, name: &str) -> anyhow::Result<Vec<T>> {
    entries_of(table, NAME, name)
}

/// The name of the table.
pub(super) const NAME: &str = "access";

#[cfg(test)]
mod tests {
    use super::super::tables::FILE_BYTES_MAX;
    use super::*;

    fn table(text: &str) -> anyhow::Result<AccessTable> {
        AccessTable::parse(text.parse().unwrap(), Path::new("/etc/encke/encke.toml"))
    }

    const ISSUER: &str = "[[issuers]]\nissuer = 'https://issuer.example'\naudience = 'encke'\nalgorithms = ['HS256']\n";

    #[test]
    fn a_table_becomes_a_policy() {
        let secret = "secret = '0123456789abcdef0123456789abcdef'\n";
        let text = format!(
            "leeway = '10s'\n[anonymous]\ngrants = [{{ actions = ['read'], paths = ['/v1/stream/public/**'] }}]\n{ISSUER}{secret}"
        );
        let table = table(&text).unwrap();
        assert_eq!(table.config.leeway.as_secs(), 10);
        assert_eq!(
            table.summary(),
            "1 issuers of tokens, anonymous requests as granted"
        );
        assert!(!format!("{table:?}").contains("0123456789abcdef"));
        assert!(table.access().unwrap().anonymous().is_some());
    }

    #[test]
    fn messages_name_the_key() {
        for (text, message) in [
            (
                "leway = '1s'",
                "unknown key leway in access; a similar key is leeway",
            ),
            ("leeway = 1", "the key access is wrong"),
            ("leeway = '1 sheep'", "must be a duration"),
            (
                "issuers = 1",
                "must be a list of tables, [[access.issuers]]",
            ),
            (
                "[[issuers]]\nissuer = 'i'",
                "the key access.issuers[0] needs",
            ),
            (
                "[[api-keys]]\nname = 'a'\nsha = 'b'",
                "unknown key sha in access.api-keys[0]; a similar key is sha256",
            ),
            (
                "[quotas]\nsubscriber = 1",
                "unknown key subscriber in access.quotas; a similar key is subscribers",
            ),
            (
                "[[quotas.overrides]]\nname = 'a'\nsubscribers = -1",
                "the key access.quotas.overrides[0] is wrong",
            ),
            ("quotas = 1", "must be a table, [access.quotas]"),
            (
                "[anonymous]\ngrants = [{ actions = ['reed'], paths = ['/'] }]",
                "unknown action \"reed\"",
            ),
            (
                "[anonymous]\ngrants = [{ actions = ['read'], path = ['/'] }]",
                "a similar key is paths",
            ),
        ] {
            let error = format!("{:#}", table(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_shown() {
        for text in [
            "api-keys = ['hidden, expected \"x\"']",
            "signing-keys = [{ kid = 'a', secret = ['hidden'] }]",
            "signing-keys = [{ kid = 'a', secret = 31337 }]",
            "signing-keys = [{ kid = 'a', secret = 3.1337 }]",
            "issuers = [{ issuer = 'i', audience = 'a', algorithms = 'hidden', secret = 'hidden' }]",
            "anonymous = 'hidden'",
            "leeway = 31337",
        ] {
            let error = format!("{:#}", table(text).unwrap_err());
            assert!(error.contains("expected"), "{text}: {error}");
            assert!(
                !error.contains("hidden") && !error.contains("1337"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn files_with_secrets_are_named() {
        let files = |text: &str| {
            let files = table(text).unwrap().secret_files();
            let shown = |(key, path): (String, PathBuf)| format!("{key} {}", path.display());
            files.into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(files("leeway = '1s'"), [""; 0]);
        let text = format!(
            "{ISSUER}secret-file = 'a'\nprivate-key-file = '/b'\n[[signing-keys]]\nkid = 'k'\nsecret-file = 'c'"
        );
        assert_eq!(
            files(&text),
            [
                "access.issuers[0].secret-file /etc/encke/a",
                "access.issuers[0].private-key-file /b",
                "access.signing-keys[0].secret-file /etc/encke/c",
            ]
        );
        for text in [
            format!("{ISSUER}secret = 'x'"),
            "signing-keys = [{ kid = 'k', secret = 'x' }]".to_owned(),
        ] {
            assert_eq!(files(&text), ["access /etc/encke/encke.toml"]);
        }
    }

    #[test]
    fn the_files_that_the_server_reads_are_those_to_watch() {
        let text = format!(
            "{ISSUER}keys-file = 'a'\nprivate-key-file = 'b'\n[[issuers]]\nissuer = 'j'\naudience = 'encke'\nalgorithms = \
             ['ES256']\npublic-key-file = '/c'\n[[signing-keys]]\nkid = 'k'\nsecret-file = 'd'"
        );
        let files = table(&text).unwrap().files();
        assert_eq!(
            files,
            ["/etc/encke/a", "/c", "/etc/encke/d"].map(PathBuf::from)
        );
    }

    #[test]
    fn files_are_found_beside_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("secret"),
            "0123456789abcdef0123456789abcdef\n",
        )
        .unwrap();
        let text = format!("{ISSUER}secret-file = 'secret'");
        let path = folder.path().join("encke.toml");
        let there = AccessTable::parse(text.parse().unwrap(), &path).unwrap();
        assert!(there.access().is_ok());
        let error = table(&text).unwrap().access().unwrap_err().to_string();
        assert!(
            error.contains("access.issuers[0].secret-file names the file secret"),
            "{error}"
        );
        std::fs::write(
            folder.path().join("secret"),
            vec![b'x'; FILE_BYTES_MAX as usize + 1],
        )
        .unwrap();
        let error = there.access().unwrap_err().to_string();
        assert!(error.contains("larger than"), "{error}");
    }
}
