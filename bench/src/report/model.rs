//! The model of a report: tables, targets, notes and plots.

use serde::Serialize;

use crate::experiment::lab::Lab;
use crate::experiment::past;
use crate::{BenchError, MachineInfo};

/// The report of experiments.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of Encke.
    pub encke: &'static str,
    /// When the run began (RFC 3339, UTC).
    pub at: String,
    /// The factor of the run's sizes.
    pub size: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The machine.
    pub machine: MachineInfo,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
    /// The experiments, in their order.
    pub experiments: Vec<Section>,
}

/// The report of one experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Section {
    /// The experiment's name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub title: String,
    /// What the field report did and found, and what this run did.
    pub story: String,
    /// The most important figures: name, in the field report, in this run.
    pub in_short: Vec<[String; 3]>,
    /// The figures, those of the field report beside those of this run.
    pub tables: Vec<Table>,
    /// What the figures must be.
    pub targets: Vec<Goal>,
    /// Explanations.
    pub notes: Vec<String>,
    /// All measurements, with units in the names.
    pub figures: serde_json::Value,
    /// The plot (SVG), if there is one.
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

/// A target and whether it was met.
#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    /// What is measured.
    pub what: String,
    /// What it must be.
    pub wanted: String,
    /// The mode of the run.
    pub measured: String,
    /// Whether it was what it must be.
    pub met: bool,
    /// Whether it is a promise that holds on any machine (nothing lost, no bound exceeded). A speed is none: a busy or slow
    /// machine can miss it.
    pub promise: bool,
}

impl Report {
    /// A report without experiments yet.
    pub(crate) fn begin(lab: &Lab<'_>) -> Result<Self, BenchError> {
        let machine = MachineInfo::look(lab.folder())?;
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

    /// The exit code: 0, or 1 when a promise was broken. A missed speed is no failure of the run.
    pub fn exit_code(&self) -> u8 {
        let mut targets = self.experiments.iter().flat_map(|e| &e.targets);
        u8::from(targets.any(|target| target.promise && !target.met))
    }

    /// The most important figures of all experiments.
    pub(super) fn in_short(&self) -> Table {
        let mut table = Table::new("", ["", past::REPORTS, past::NOW]);
        for experiment in &self.experiments {
            for [what, before, now] in &experiment.in_short {
                table.row(format!("{}: {what}", experiment.name), [before, now]);
            }
        }
        table
    }
}

impl Section {
    /// The targets as a table.
    pub(super) fn targets(&self) -> Table {
        let mut table = Table::new("", ["target", "wanted", "measured", ""]);
        table.rows = self
            .targets
            .iter()
            .map(|t| t.row().map(Into::into).into())
            .collect();
        table
    }
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new<S: Into<String>>(title: &str, columns: impl IntoIterator<Item = S>) -> Self {
        Self {
            title: title.to_owned(),
            columns: columns.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a name and a figure for each further heading.
    pub(crate) fn row<S: ToString>(
        &mut self,
        name: impl Into<String>,
        figures: impl IntoIterator<Item = S>,
    ) {
        let figures = figures.into_iter().map(|figure| figure.to_string());
        self.rows
            .push(std::iter::once(name.into()).chain(figures).collect());
        debug_assert_eq!(
            self.rows.last().map(Vec::len),
            Some(self.columns.len()),
            "{:?}",
            self.rows.last()
        );
    }
}

impl Goal {
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

    /// What, wanted, measured, verdict.
    pub(super) fn row(&self) -> [&str; 4] {
        let verdict = match (self.met, self.promise) {
            (true, _) => "met",
            (false, false) => "missed",
            (false, true) => "BROKEN",
        };
        [&self.what, &self.wanted, &self.measured, verdict]
    }
}

/// The figures of an experiment for programs.
pub(crate) fn figures(of: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(of).expect("structures of texts and numbers are JSON")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::lab::tests::lab;

    /// A report with one experiment that holds every kind of thing.
    pub(crate) fn sample() -> Report {
        let data = tempfile::tempdir().unwrap();
        let mut report = Report::begin(&lab(1.0, data.path())).unwrap();
        let mut table = Table::new("time", ["", "2005-2013", "now"]);
        table.row("one <b>", ["861 s", "1.2 s"]);
        table.row("another one", ["2,156 s", "1.1 µs"]);
        report.warnings = vec!["busy & loud".into()];
        report.experiments.push(Section {
            name: "log",
            title: "Title".into(),
            story: "What was seen.".into(),
            in_short: vec![["what was sent", "861 s", "1.2 s"].map(Into::into)],
            tables: vec![table],
            targets: vec![
                Goal::speed("rate", "1", "2", true),
                Goal::speed("rate of another", "1", "0.5", false),
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
        let target = Goal::promise("bound", "10", "11", false);
        report.experiments[0].targets.push(target);
        assert_eq!(report.exit_code(), 1);
    }

    #[test]
    fn json_holds_tables_and_figures_but_no_plots() {
        let json = serde_json::to_value(sample()).unwrap();
        let log = &json["experiments"][0];
        assert_eq!(log["tables"][0]["rows"][1][2], "1.1 µs");
        assert_eq!(log["figures"][1], 2);
        assert_eq!(log["targets"][1]["met"], false);
        assert!(log.get("plot").is_none());
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
        let at: jiff::Timestamp = json["at"].as_str().unwrap().parse().unwrap();
        assert!(at <= jiff::Timestamp::now());
    }
}
