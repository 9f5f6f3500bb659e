//! Reports as text, Markdown and HTML.

use std::fmt;
use std::path::Path;

use minijinja::context;
use minijinja::value::{Serde, Value};

use super::model::{Goal, Report, Section, Table};
use super::template;
use crate::BenchError;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (encke, size, at) = (self.encke, self.size, &self.at);
        let machine = self.machine.line();
        writeln!(
            f,
            "encke {encke}, size {size}, {at}, {:.0} s\n{machine}",
            self.seconds
        )?;
        for warning in &self.warnings {
            writeln!(f, "WARNING: {warning}")?;
        }
        for experiment in &self.experiments {
            write!(f, "\n{experiment}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "== {}: {}\n", self.name, self.title)?;
        wrapped(f, &self.story, "")?;
        for table in self.tables.iter().chain([&self.targets()]) {
            write!(f, "\n{table}")?;
        }
        writeln!(f)?;
        for note in &self.notes {
            wrapped(f, note, "- ")?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || std::iter::once(&self.columns).chain(&self.rows);
        let width = |n: usize| {
            let cells = all().filter_map(|row| row.get(n));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for row in all() {
            let mut line = format!("  {:<1$}", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!("  {cell:>width$}");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Writes a paragraph in lines of bounded width, the first one behind `sign`.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str, sign: &str) -> fmt::Result {
    let indent = " ".repeat(sign.len());
    let mut line = sign.to_owned();
    for word in text.split_whitespace() {
        let used = line.chars().count();
        if used > indent.len() && used + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{line}")?;
            line.clone_from(&indent);
        } else if used > indent.len() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(f, "{line}")
}

/// The width of a line of text, in characters.
const WIDTH: usize = 110;

/// The report as a page of its own, with its plots.
pub(super) fn page(report: &Report) -> String {
    rendered("page.html", report, "")
}

/// The whole report as Markdown. Its plots are images beside it.
pub(super) fn markdown(report: &Report) -> String {
    rendered("report.md", report, "")
}

/// Replaces the summary in `file`, between the two lines that mark its place.
pub(super) fn insert(report: &Report, file: &Path, folder: &Path) -> Result<(), BenchError> {
    let no_place = || BenchError::NoPlace {
        path: file.to_owned(),
        begin: BEGIN,
        end: END,
    };
    let text = std::fs::read_to_string(file).map_err(BenchError::file("read", file))?;
    let (before, rest) = text.split_once(BEGIN).ok_or_else(no_place)?;
    let (_, after) = rest.split_once(END).ok_or_else(no_place)?;
    let beside = file.parent().unwrap_or(Path::new(""));
    let folder = folder.strip_prefix(beside).unwrap_or(folder).display();
    let summary = rendered("summary.md", report, &format!("{folder}/"));
    let new = format!("{before}{BEGIN}\n{summary}\n{END}{after}");
    std::fs::write(file, new).map_err(BenchError::file("write", file))
}

/// The marks of the summary's place.
const BEGIN: &str = "<!-- bench: `make bench-report` writes what stands between these marks -->";
const END: &str = "<!-- bench: end -->";

/// Fills in a template. `folder` is where the whole report is, relative to what is written.
fn rendered(template: &str, report: &Report, folder: &str) -> String {
    let targets = || report.experiments.iter().flat_map(|e| &e.targets);
    let met = |targets: &[Goal]| targets.iter().filter(|target| target.met).count();
    let section = |section: &Section| {
        context! {
            plot => section.plot.clone(),
            targets => Serde(section.targets()),
            met => met(&section.targets),
            ..Value::from(Serde(section))
        }
    };
    let missed = targets().filter(|target| !target.met);
    let context = context! {
        report => Serde(report),
        experiments => report.experiments.iter().map(section).collect::<Vec<_>>(),
        missed => Serde(missed.map(Goal::row).collect::<Vec<_>>()),
        folder,
        machine => report.machine.line(),
        in_short => Serde(report.in_short()),
        met => targets().filter(|target| target.met).count(),
        targets => targets().count(),
    };
    template::render(template, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::tests::sample;

    #[test]
    fn columns_are_aligned_and_targets_have_verdicts() {
        let text = sample().to_string();
        let lines: Vec<_> = text.lines().collect();
        let find = |what: &str| lines.iter().find(|line| line.contains(what)).unwrap();
        let ends = |line: &str| line.chars().count();
        assert_eq!(ends(find("one <b>")), ends(find("another one")));
        assert_eq!(ends(find("another one")), ends(find("2005-2013  ")));
        assert!(find("rate of another").ends_with("missed"));
        assert!(text.contains("WARNING: busy & loud"));
        assert!(text.contains("\n- A note.\n"));
    }

    #[test]
    fn paragraphs_keep_their_words_and_width() {
        let mut report = sample();
        let word = "word ".repeat(100);
        report.experiments[0].notes = vec![word.clone()];
        let text = report.experiments[0].to_string();
        let note: Vec<_> = text
            .lines()
            .skip_while(|line| !line.starts_with("- "))
            .collect();
        assert!(note.len() > 3 && note.iter().all(|line| line.chars().count() <= WIDTH));
        assert_eq!(note.join(" ").matches("word").count(), 100);
    }

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
        let mut report = sample();
        let text = page(&report);
        assert!(text.starts_with("<!doctype html>"));
        assert!(text.contains("one &lt;b&gt;") && !text.contains("<b>"));
        assert!(text.contains("busy &amp; loud"));
        assert!(text.contains("<svg") && text.contains("prefers-color-scheme: dark"));
        // Narrow screens show the heading of its column beside each figure.
        assert!(text.contains("<td role=\"cell\" data-column=\"now\">1.2 s</td>"));
        for outside in ["<link", "<script", "src=", "url(", "@import"] {
            assert!(!text.contains(outside), "{outside}");
        }
        assert!(!text.contains("<nav>"));
        let again = report.experiments[0].clone();
        report.experiments.push(again);
        assert!(page(&report).contains("1 of 2 targets met"));
    }

    #[test]
    fn the_whole_report_has_its_tables_and_says_what_was_missed() {
        let text = markdown(&sample());
        assert!(text.starts_with("# The five experiments\n"));
        assert!(
            text.contains("\n| one \\<b\\> | 861 s | 1.2 s |\n"),
            "{text}"
        );
        assert!(text.contains("\n|---|---:|---:|\n"), "{text}");
        assert!(text.contains("\n![log](log.svg)\n"));
        assert!(text.contains("1 of 2 targets met"));
        assert!(text.contains("- missed: rate of another, 0.5 (wanted: 1)\n"));
        assert!(text.contains("\n- A note.\n"));
    }

    #[test]
    fn the_summary_replaces_the_last_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("docs/experiments.md");
        let out = folder.path().join("docs/bench");
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        let text = format!("# Title\n\n{BEGIN}\nold figures\n{END}\n\nThe rest.\n");
        std::fs::write(&file, &text).unwrap();
        insert(&sample(), &file, &out).unwrap();
        let once = std::fs::read_to_string(&file).unwrap();
        assert!(once.starts_with("# Title\n\n<!--") && once.ends_with("-->\n\nThe rest.\n"));
        assert!(!once.contains("old figures"));
        assert!(
            once.contains("| log: what was sent | 861 s | 1.2 s |"),
            "{once}"
        );
        // The link is relative to the file.
        assert!(once.contains("([page](bench/index.html))"));
        insert(&sample(), &file, &out).unwrap();
        let twice = std::fs::read_to_string(&file).unwrap();
        assert_eq!(twice.lines().count(), once.lines().count());

        std::fs::write(&file, "no place").unwrap();
        let refused = insert(&sample(), &file, &out).unwrap_err();
        assert!(refused.to_string().contains(END), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "no place");
    }
}
