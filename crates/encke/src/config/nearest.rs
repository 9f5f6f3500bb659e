//! Proposals for names that are not known.

/// The known name that is most like this one, if it is worth proposing.
pub(super) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let similarity = |known: &str| strsim::jaro_winkler(name, known);
    known
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|known| similarity(known) >= SIMILAR)
}

/// The setting that other servers call by this name.
pub(super) fn synonym(name: &str) -> Option<&'static str> {
    let found = SYNONYMS.iter().find(|(other, _)| *other == name);
    found.map(|(_, setting)| *setting)
}

/// Names that other servers have for settings, and that are not similar to ours.
const SYNONYMS: [(&str, &str); 10] = [
    ("addr", "listen"),
    ("address", "listen"),
    ("bind", "listen"),
    ("host", "listen"),
    ("http-port", "listen"),
    ("port", "listen"),
    ("admin-port", "admin-listen"),
    ("data-dir", "data"),
    ("dir", "data"),
    ("log-level", "log"),
];

/// From this similarity on, a name is worth proposing.
const SIMILAR: f64 = 0.8;
