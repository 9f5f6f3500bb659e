//! Fills in the templates of reports. Text templates look like the text that they make: a name in a column of [`NAME_WIDTH`], then
//! its figures.
//!
//! Filters write numbers with their units; each also takes the name of a field, `p|micros("p50_us")`, and writes [`UNKNOWN`] for a
//! figure that is `none`.

use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, context};
use serde::Serialize;

use super::model::Table;
use crate::units;

/// A report as text: the template knows the fields of the report, and what `derived` adds to them.
pub(crate) fn text(template: &str, report: &impl Serialize, derived: Value) -> String {
    render(
        template,
        context! { ..derived, ..Value::from(Serde(report)) },
    )
}

/// Fills in a template with the values of a map.
pub(super) fn render(template: &str, context: Value) -> String {
    let template = TEMPLATES.get_template(template);
    let rendered = template.and_then(|template| template.render(context));
    rendered.expect("the templates fit the reports")
}

static TEMPLATES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut templates = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    syntax.keep_trailing_newline(true);
    templates.set_syntax(syntax.build().expect("the default delimiters are valid"));
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.add_filter("md", |text: String| escaped(&text));
    templates.add_filter("name", |name: String| format!("{name:<NAME_WIDTH$}"));
    templates.add_filter("aligned", |rows: String| aligned(&rows));
    templates.add_filter("per", |number: f64, of: f64| number / of.max(1e-9));
    templates.add_filter("quoted", |text: String| format!("{text:?}"));
    templates.add_filter("signed", |number: f64, digits: usize| {
        format!("{number:+.digits$}")
    });
    templates.add_filter("length_of_time", units::length_of_time);
    templates.add_filter("number", |number: f64| number.to_string());
    templates.add_filter(
        "fixed",
        |value: Value, digits: usize, unit: Option<String>| {
            let unit = unit.unwrap_or_default();
            figure(value, None, |number| format!("{number:.digits$}{unit}"))
        },
    );
    for (name, write) in UNITS {
        templates.add_filter(name, move |value: Value, field: Option<String>| {
            figure(value, field, write)
        });
    }
    templates.add_filter("percentiles", |p: Value| {
        let name = |field: &str| figure(p.clone(), Some(field.into()), units::micros);
        let count = figure(p.clone(), Some("count".into()), |n| units::count(n as u64))?;
        Ok::<_, Error>(format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}, max {} ({count} values)",
            name("p50_us")?,
            name("p90_us")?,
            name("p99_us")?,
            name("p99_9_us")?,
            name("max_us")?,
        ))
    });
    for (name, source) in SOURCES {
        let added = templates.add_template(name, source);
        added.expect("the templates are part of the program");
    }
    templates
});

/// Writes a number with its unit.
type Write = fn(f64) -> String;

/// The filters of numbers.
const UNITS: [(&str, Write); 5] = [
    ("count", |number| units::count(number as u64)),
    ("bytes", |number| units::bytes(number as u64)),
    ("micros", units::micros),
    ("nanos", units::nanos),
    ("per_second", units::per_second),
];

/// Writes a value, or a field of it.
fn figure(
    value: Value,
    field: Option<String>,
    write: impl Fn(f64) -> String,
) -> Result<String, Error> {
    let value = match field {
        Some(field) if !value.is_none() => value.get_attr(&field)?,
        _ => value,
    };
    match value {
        value if value.is_none() => Ok(UNKNOWN.to_owned()),
        value if value.is_undefined() => Err(Error::from(ErrorKind::UndefinedError)),
        value => Ok(write(f64::try_from(value)?)),
    }
}

/// Aligns the cells of lines, which are separated by `|`; the first line has the headings.
fn aligned(rows: &str) -> String {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
    let mut lines = rows.lines().map(cells);
    Table {
        title: String::new(),
        columns: lines.next().unwrap_or_default(),
        rows: lines.collect(),
    }
    .to_string()
}

/// Text in which no character is markup in Markdown.
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

/// In place of a figure that is not known.
const UNKNOWN: &str = "–";

/// The width of the names in a list, in characters.
const NAME_WIDTH: usize = 17;

const SOURCES: [(&str, &str); 22] = [
    ("page.html", include_str!("page.html")),
    ("report.md", include_str!("report.md")),
    ("summary.md", include_str!("summary.md")),
    ("shared.txt", include_str!("../load/report/shared.txt")),
    ("answers.txt", include_str!("../load/report/answers.txt")),
    ("beside.txt", include_str!("../load/report/beside.txt")),
    ("flood.txt", include_str!("../load/report/flood.txt")),
    ("million.txt", include_str!("../million/million.txt")),
    (
        "pool.section",
        include_str!("../experiment/pool/pool.section"),
    ),
    ("read.txt", include_str!("../load/report/read.txt")),
    ("spray.txt", include_str!("../load/report/spray.txt")),
    ("storm.txt", include_str!("../load/report/storm.txt")),
    ("verify.txt", include_str!("../load/report/verify.txt")),
    (
        "backlog.section",
        include_str!("../experiment/backlog/backlog.section"),
    ),
    (
        "fanout.section",
        include_str!("../experiment/delivery/fanout.section"),
    ),
    (
        "flood.section",
        include_str!("../experiment/flood/flood.section"),
    ),
    (
        "fleet.section",
        include_str!("../experiment/fleet/fleet.section"),
    ),
    (
        "fsync.section",
        include_str!("../experiment/fsync/fsync.section"),
    ),
    ("log.section", include_str!("../experiment/log/log.section")),
    ("kept.txt", include_str!("../experiment/delivery/kept.txt")),
    (
        "spread.section",
        include_str!("../experiment/delivery/spread.section"),
    ),
    (
        "streams.section",
        include_str!("../experiment/streams.section"),
    ),
];
