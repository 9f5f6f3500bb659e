//! Proposals for names that are not known.

/// The known name that is most like this one, if it is worth proposing.
pub(super) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let similarity = |known: &str| strsim::jaro_winkler(name, known);
    known
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|known| similarity(known) >= SIMILAR)
}

/// From this similarity on, a name is worth proposing.
const SIMILAR: f64 = 0.8;
