//! One model for all reports (`model`); `render` turns it into text, Markdown and HTML, and `files` writes these.

mod files;
mod model;
pub(crate) mod plot;
mod render;
mod section;
pub(crate) mod template;

pub use self::model::{Goal, Report, Section, Table};
