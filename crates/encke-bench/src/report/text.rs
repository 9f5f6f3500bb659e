//! The report as text: tables with aligned columns.

use std::fmt;

use super::{Report, Section, Table, Target};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "encke {} bench, size {}, {}, {:.0} s\n{}",
            self.encke,
            self.size,
            self.at,
            self.seconds,
            self.machine.line()
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
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        if !self.targets.is_empty() {
            write!(f, "\n{}", of_targets(&self.targets))?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            wrapped(f, note, "- ")?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || std::iter::once(&self.columns).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|n| {
                let cells = all().filter_map(|row| row.get(n));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for row in all() {
            let mut line = String::new();
            for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let cell = match n {
                    0 => format!("  {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The targets as a table.
pub(super) fn of_targets(targets: &[Target]) -> Table {
    let mut table = Table::new("", &["what must hold", "wanted", "measured", ""]);
    for target in targets {
        let verdict = target.verdict();
        table.row(
            &target.what,
            [target.wanted.as_str(), &target.measured, verdict],
        );
    }
    table
}

/// Writes a paragraph in lines of bounded width, the first one behind `sign`.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str, sign: &str) -> fmt::Result {
    let indent = " ".repeat(sign.chars().count());
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

#[cfg(test)]
mod tests {
    use super::super::tests::sample;

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
        assert!(note.len() > 3 && note.iter().all(|line| line.chars().count() <= super::WIDTH));
        let words = note
            .join(" ")
            .split_whitespace()
            .filter(|w| *w == "word")
            .count();
        assert_eq!(words, 100);
    }
}
