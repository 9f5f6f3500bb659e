//! Makes the section of an experiment from its template.
//!
//! Each line of what the template makes is `kind: text`; cells of a row are separated by `|`:
//!
//! ```text
//! title: pings while the log syncs
//! story: The report: …
//! short: a ping | 110 to 410 ms | 0.2 ms           a figure: in the report, in this run
//! table: Pings                                      begins a table
//! columns: | before | during
//! row: p50 | 0.1 ms | 0.2 ms
//! speed: ping p99 | at most 1 ms | 0.2 ms | true    a goal that depends on the machine, and whether it was met
//! promise: longest queue | 10 | 9 | true            a goal that holds on any machine
//! none: records lost | 0                            a number that must be 0 on any machine
//! note: The load's threads run at nice 19.
//! ```

use minijinja::Value;
use serde::Serialize;

use super::model::{Goal, Section, Table, figures};
use super::template;

impl Section {
    /// Fills in the template of the experiment with its findings and what `derived` adds to them.
    pub(crate) fn from_template(
        name: &'static str,
        findings: &impl Serialize,
        derived: Value,
        plot: Option<String>,
    ) -> Self {
        let mut section = Self {
            name,
            title: String::new(),
            story: String::new(),
            in_short: Vec::new(),
            tables: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            figures: figures(findings),
            plot,
        };
        let text = template::text(&format!("{name}.section"), findings, derived);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let (kind, text) = line.split_once(':').expect("each line has a kind");
            section.add(kind, text.trim());
        }
        section
    }

    fn add(&mut self, kind: &str, text: &str) {
        let cells: Vec<String> = text.split('|').map(|cell| cell.trim().to_owned()).collect();
        let goal = |goal: fn(String, String, String, bool) -> Goal| {
            let [what, wanted, measured, met] = fixed(cells.clone());
            let met = match met.as_str() {
                "True" => true,
                "False" => false,
                met => panic!("a template says {met:?} instead of whether a goal was met"),
            };
            goal(what, wanted, measured, met)
        };
        match kind {
            "title" => self.title = text.to_owned(),
            "story" => self.story = text.to_owned(),
            "short" => self.in_short.push(fixed(cells)),
            "table" => self.tables.push(Table::new::<String>(text, [])),
            "columns" => self.last_table().columns = cells,
            "row" => self.last_table().rows.push(cells),
            "speed" => self.targets.push(goal(Goal::speed)),
            "promise" => self.targets.push(goal(Goal::promise)),
            "none" => {
                let [what, number] = fixed(cells);
                let is_none = number == "0";
                self.targets.push(Goal::promise(what, "0", number, is_none));
            }
            "note" => self.notes.push(text.to_owned()),
            kind => panic!("a template has a line of the unknown kind {kind:?}"),
        }
    }

    fn last_table(&mut self) -> &mut Table {
        self.tables.last_mut().expect("`table` precedes its lines")
    }
}

fn fixed<const N: usize>(cells: Vec<String>) -> [String; N] {
    cells
        .try_into()
        .expect("the templates have as many cells as a line of this kind")
}
