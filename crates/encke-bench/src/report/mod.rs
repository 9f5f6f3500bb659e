//! What a run has found: tables, targets and plots, for people and for programs.

mod html;
mod markdown;
mod text;

use std::path::Path;

use serde::Serialize;

use crate::experiment::lab::Lab;
use crate::experiment::past;
use crate::{BenchError, Machine};

/// What a run has found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of Encke that was measured.
    pub encke: &'static str,
    /// When the run began (RFC 3339, UTC).
    pub at: String,
    /// The factor that the run's sizes were multiplied with.
    pub size: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Where it was made.
    pub machine: Machine,
    /// What is to be known before the figures are believed.
    pub warnings: Vec<String>,
    /// The experiments, in their order.
    pub experiments: Vec<Section>,
}

/// What one experiment has found.
#[derive(Debug, Clone, Serialize)]
pub struct Section {
    /// The experiment's name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// What the field report did and saw, and what was done now.
    pub story: String,
    /// The few figures that stand for all: what, in the report, in this run.
    pub in_short: Vec<[String; 3]>,
    /// The figures, those of the report beside those of this run.
    pub tables: Vec<Table>,
    /// What the figures must be.
    pub targets: Vec<Target>,
    /// What helps to understand them.
    pub notes: Vec<String>,
    /// All that was measured, with units in the names.
    pub figures: serde_json::Value,
    /// The plot (SVG), where a curve says more.
    #[serde(skip)]
    pub plot: Option<String>,
}

/// Figures with their names.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The headings, that of the names first.
    pub columns: Vec<String>,
    /// The rows: a name, then a figure with its unit for each further heading.
    pub rows: Vec<Vec<String>>,
}

/// Something that must hold.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// What is measured.
    pub what: String,
    /// What it must be.
    pub wanted: String,
    /// What it was.
    pub measured: String,
    /// Whether it was what it must be.
    pub met: bool,
    /// Whether it is a promise (nothing lost, no bound passed) that holds on any machine, and not a speed, which a busy
    /// or slow one may miss.
    pub promise: bool,
}

impl Report {
    /// A report without experiments yet.
    pub(crate) fn begin(lab: &Lab<'_>) -> Result<Self, BenchError> {
        let machine = Machine::look(lab.folder())?;
        Ok(Self {
            encke: env!("CARGO_PKG_VERSION"),
            at: jiff::Timestamp::now()
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string(),
            size: lab.size,
            seconds: 0.0,
            warnings: machine.warnings(),
            machine,
            experiments: Vec::new(),
        })
    }

    /// What the process should exit with: 0, or 1 when a promise was broken. A target for speed that was missed is shown,
    /// but is no failure of the run.
    pub fn exit_code(&self) -> u8 {
        let targets = self.experiments.iter().flat_map(|e| &e.targets);
        u8::from(
            targets
                .into_iter()
                .any(|target| target.promise && !target.met),
        )
    }

    /// The few figures that stand for all, by experiment.
    pub fn in_short(&self) -> Table {
        let mut table = Table::new("", &["", past::REPORTS, past::NOW]);
        for experiment in &self.experiments {
            for [what, before, now] in &experiment.in_short {
                let name = format!("{}: {what}", experiment.name);
                table.row(&name, [before.as_str(), now]);
            }
        }
        table
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("structures of texts and numbers are JSON")
    }

    /// The report as a page of its own, with its plots.
    pub fn page(&self) -> String {
        html::page(self)
    }

    /// Writes the page `NAME.html` and the plots into `folder`.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn write_page(&self, folder: &Path, name: &str) -> Result<(), BenchError> {
        std::fs::create_dir_all(folder).map_err(BenchError::file("make", folder))?;
        write(&folder.join(format!("{name}.html")), &self.page())?;
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
        write(&folder.join("README.md"), &markdown::page(self))?;
        match insert {
            Some(file) => markdown::insert(self, file, folder),
            None => Ok(()),
        }
    }
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a name and its figures, one for each further heading.
    pub(crate) fn row<'a>(&mut self, name: &str, figures: impl IntoIterator<Item = &'a str>) {
        let name = std::iter::once(name.to_owned());
        let row: Vec<_> = name
            .chain(figures.into_iter().map(ToOwned::to_owned))
            .collect();
        debug_assert_eq!(row.len(), self.columns.len(), "{row:?}");
        self.rows.push(row);
    }
}

impl Target {
    /// A speed or a cost, which depends on the machine.
    pub(crate) fn speed(
        what: impl Into<String>,
        wanted: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) -> Self {
        Self {
            what: what.into(),
            wanted: wanted.into(),
            measured: measured.into(),
            met,
            promise: false,
        }
    }

    /// Something that holds on any machine.
    pub(crate) fn promise(
        what: impl Into<String>,
        wanted: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) -> Self {
        Self {
            promise: true,
            ..Self::speed(what, wanted, measured, met)
        }
    }

    /// The verdict in a word.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.met, self.promise) {
            (true, _) => "met",
            (false, false) => "missed",
            (false, true) => "BROKEN",
        }
    }
}

/// The figures of an experiment for programs.
pub(crate) fn figures(of: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(of).expect("structures of texts and numbers are JSON")
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(BenchError::file("write", path))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::lab::tests::lab;

    /// A report with one experiment that holds every kind of thing.
    pub(crate) fn sample() -> Report {
        let data = tempfile::tempdir().unwrap();
        let mut report = Report::begin(&lab(1.0, data.path())).unwrap();
        let mut table = Table::new("time", &["", "2005-2013", "now"]);
        table.row("one <b>", ["861 s", "1.2 s"]);
        table.row("another one", ["2,156 s", "1.1 µs"]);
        report.warnings = vec!["busy & loud".into()];
        report.experiments.push(Section {
            name: "log",
            title: "Title",
            story: "What was seen.".into(),
            in_short: vec![["what was sent", "861 s", "1.2 s"].map(Into::into)],
            tables: vec![table],
            targets: vec![
                Target::speed("rate", "1", "2", true),
                Target::speed("rate of another", "1", "0.5", false),
            ],
            notes: vec!["A note.".into()],
            figures: figures(&[1, 2]),
            plot: Some("<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>".into()),
        });
        report
    }

    #[test]
    fn only_broken_promises_are_failures() {
        let mut report = sample();
        assert_eq!(report.exit_code(), 0);
        let target = Target::promise("bound", "10", "11", false);
        report.experiments[0].targets.push(target);
        assert_eq!(report.exit_code(), 1);
    }

    #[test]
    fn json_holds_tables_and_figures_but_no_plots() {
        let json: serde_json::Value = serde_json::from_str(&sample().json()).unwrap();
        let log = &json["experiments"][0];
        assert_eq!(log["tables"][0]["rows"][1][2], "1.1 µs");
        assert_eq!(log["figures"][1], 2);
        assert_eq!(log["targets"][1]["met"], false);
        assert!(log.get("plot").is_none());
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
        let at: jiff::Timestamp = json["at"].as_str().unwrap().parse().unwrap();
        assert!(at <= jiff::Timestamp::now());
    }

    #[test]
    fn files_are_written_where_they_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b");
        let report = sample();
        report.write_page(&out, "log").unwrap();
        let names = |folder: &Path| {
            let mut names: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&out), ["log.html", "log.svg"]);
        report.write_markdown(&out, None).unwrap();
        assert_eq!(names(&out), ["README.md", "log.html", "log.svg"]);
    }
}
