//! The report as Markdown, whole and in short, and the short one put into a file that people read first.

use std::path::Path;

use super::{Report, Section, Table};
use crate::BenchError;

/// The whole report. Its plots are images beside it.
pub(super) fn page(report: &Report) -> String {
    let mut text = format!("# The five experiments\n\n{}", in_short(report, ""));
    for experiment in &report.experiments {
        text.push_str(&section(experiment));
    }
    text
}

/// A row for each experiment, and what was missed. `folder` is where the whole report is, as links to it begin: empty, or
/// with a slash at its end.
pub(super) fn in_short(report: &Report, folder: &str) -> String {
    let mut text = format!(
        "encke {}, {}, size {}: {}.\n\n",
        report.encke,
        report.at,
        report.size,
        escaped(&report.machine.line())
    );
    for warning in &report.warnings {
        text.push_str(&format!("**Warning: {}.**\n\n", escaped(warning)));
    }
    text.push_str(&table(&report.in_short()));
    let targets = || report.experiments.iter().flat_map(|e| &e.targets);
    let met = targets().filter(|target| target.met).count();
    text.push_str(&format!(
        "\n{met} of {} targets met ([page]({folder}index.html)).\n",
        targets().count()
    ));
    for target in targets().filter(|target| !target.met) {
        text.push_str(&format!(
            "- {}: {}, {} (wanted: {})\n",
            target.verdict(),
            escaped(&target.what),
            escaped(&target.measured),
            escaped(&target.wanted)
        ));
    }
    text
}

/// Puts the short report into `file`, between the two lines that mark its place. Everything else stays as it is.
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
    let new = format!(
        "{before}{BEGIN}\n{}\n{END}{after}",
        in_short(report, &format!("{folder}/"))
    );
    std::fs::write(file, new).map_err(BenchError::file("write", file))
}

fn section(experiment: &Section) -> String {
    let mut text = format!(
        "\n## {}: {}\n\n{}\n",
        experiment.name,
        escaped(experiment.title),
        escaped(&experiment.story)
    );
    for each in &experiment.tables {
        if !each.title.is_empty() {
            text.push_str(&format!("\n{}:\n", escaped(&each.title)));
        }
        text.push_str(&format!("\n{}", table(each)));
    }
    text.push_str(&format!(
        "\n{}",
        table(&super::text::of_targets(&experiment.targets))
    ));
    if experiment.plot.is_some() {
        text.push_str(&format!("\n![{0}]({0}.svg)\n", experiment.name));
    }
    for note in &experiment.notes {
        text.push_str(&format!("\n- {}", escaped(note)));
    }
    if !experiment.notes.is_empty() {
        text.push('\n');
    }
    text
}

fn table(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = row(&table.columns);
    text.push_str("|---|");
    text.push_str(&"---:|".repeat(table.columns.len().saturating_sub(1)));
    text.push('\n');
    for cells in &table.rows {
        text.push_str(&row(cells));
    }
    text
}

/// What would be a mark in Markdown is text here.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '|' | '*' | '_' | '`' | '<' | '>' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

/// Where the short report begins and ends in a file.
pub(super) const BEGIN: &str =
    "<!-- bench: `make bench-report` writes what stands between these marks -->";
pub(super) const END: &str = "<!-- bench: end -->";

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_whole_report_has_its_tables_and_says_what_was_missed() {
        let page = page(&sample());
        assert!(page.starts_with("# The five experiments\n"));
        assert!(page.contains("\n| one \\<b\\> | 861 s | 1.2 s |\n"));
        assert!(page.contains("\n![log](log.svg)\n"));
        assert!(page.contains("1 of 2 targets met"));
        assert!(page.contains("- missed: rate of another, 0.5 (wanted: 1)\n"));
        assert!(page.contains("\n- A note.\n"));
    }

    #[test]
    fn the_short_report_replaces_the_last_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("README.md");
        let out = folder.path().join("docs/bench");
        let text = format!("# Title\n\n{BEGIN}\nold figures\n{END}\n\nThe rest.\n");
        std::fs::write(&file, &text).unwrap();
        insert(&sample(), &file, &out).unwrap();
        let once = std::fs::read_to_string(&file).unwrap();
        assert!(once.starts_with("# Title\n\n<!--") && once.ends_with("-->\n\nThe rest.\n"));
        assert!(!once.contains("old figures"));
        assert!(once.contains("| log: what was sent | 861 s | 1.2 s |"));
        assert!(once.contains("(docs/bench/index.html)"));
        insert(&sample(), &file, &out).unwrap();
        let twice = std::fs::read_to_string(&file).unwrap();
        assert_eq!(twice.lines().count(), once.lines().count());

        std::fs::write(&file, "no place").unwrap();
        let refused = insert(&sample(), &file, &out).unwrap_err();
        assert!(refused.to_string().contains(END), "{refused}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "no place");
    }
}
