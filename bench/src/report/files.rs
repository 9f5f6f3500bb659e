//! Writes a report into files.

use std::path::Path;

use super::model::Report;
use super::render;
use crate::BenchError;

impl Report {
    /// Writes the page `NAME.html` and the plots into `folder`.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn write_page(&self, folder: &Path, name: &str) -> Result<(), BenchError> {
        std::fs::create_dir_all(folder).map_err(BenchError::file("make", folder))?;
        write(&folder.join(format!("{name}.html")), &render::page(self))?;
        for experiment in &self.experiments {
            if let Some(plot) = &experiment.plot {
                write(&folder.join(format!("{}.svg", experiment.name)), plot)?;
            }
        }
        Ok(())
    }

    /// Writes `README.md` into `folder`, and the summary into the file `insert` at its marked place.
    ///
    /// # Errors
    /// A file can't be written, or `insert` has no marked place.
    pub fn write_markdown(&self, folder: &Path, insert: Option<&Path>) -> Result<(), BenchError> {
        write(&folder.join("README.md"), &render::markdown(self))?;
        match insert {
            Some(file) => render::insert(self, file, folder),
            None => Ok(()),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(BenchError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::tests::sample;

    #[test]
    fn files_are_written_where_they_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b");
        let report = sample();
        let names = |folder: &Path| {
            let mut names: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        report.write_page(&out, "log").unwrap();
        assert_eq!(names(&out), ["log.html", "log.svg"]);
        report.write_markdown(&out, None).unwrap();
        assert_eq!(names(&out), ["README.md", "log.html", "log.svg"]);
    }
}
