//! Whose streams a caller may use.

use serde::{Deserialize, Serialize};

/// Whose streams a caller may use. Streams that belong to nobody are for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Viewer {
    /// Those of all owners.
    #[default]
    All,
    /// Those of this caller, or of nobody.
    Of(Option<Box<str>>),
}

impl Viewer {
    /// Whether the caller may use the streams of an owner.
    pub fn sees(&self, owner: Option<&str>) -> bool {
        match (self, owner) {
            (Viewer::All, _) | (_, None) => true,
            (Viewer::Of(own), Some(owner)) => own.as_deref() == Some(owner),
        }
    }

    /// Whether the caller may use all that the caller with `before` may use.
    pub fn includes(&self, before: &Viewer) -> bool {
        *self == Viewer::All || self == before || *before == Viewer::Of(None)
    }
}
