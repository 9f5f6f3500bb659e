//! The report as a page: self-contained, readable on a phone and on a dark screen.

use super::{Report, Section, Table, Target};

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let title = match &report.experiments[..] {
        [only] => format!("encke bench {}", only.name),
        _ => "encke bench: the five experiments".to_owned(),
    };
    let mut body = format!(
        "<h1>{}</h1>\n<p class=\"machine\">encke {}, {}, size {}, {:.0} s. {}</p>\n",
        escaped(&title),
        escaped(report.encke),
        escaped(&report.at),
        report.size,
        report.seconds,
        escaped(&report.machine.line())
    );
    for warning in &report.warnings {
        body.push_str(&format!("<p class=\"warning\">{}</p>\n", escaped(warning)));
    }
    if report.experiments.len() > 1 {
        body.push_str(&summary(&report.experiments));
    }
    for experiment in &report.experiments {
        body.push_str(&section(experiment));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(&title)
    )
}

/// All experiments with how many of their targets were met.
fn summary(experiments: &[Section]) -> String {
    let items: String = experiments
        .iter()
        .map(|experiment| {
            let met = experiment
                .targets
                .iter()
                .filter(|target| target.met)
                .count();
            format!(
                "<li><a href=\"#{0}\">{0}</a>: {1} ({met} of {2} targets met)</li>\n",
                escaped(experiment.name),
                escaped(experiment.title),
                experiment.targets.len()
            )
        })
        .collect();
    format!("<nav><ol>\n{items}</ol></nav>\n")
}

fn section(experiment: &Section) -> String {
    let mut html = format!(
        "<section id=\"{0}\">\n<h2>{0}: {1}</h2>\n<p>{2}</p>\n",
        escaped(experiment.name),
        escaped(experiment.title),
        escaped(&experiment.story)
    );
    for each in &experiment.tables {
        html.push_str(&table(each));
    }
    html.push_str(&targets(&experiment.targets));
    if let Some(plot) = &experiment.plot {
        // Drawn by this program, which escapes what it writes.
        html.push_str(&format!("<div class=\"wide\">{plot}</div>\n"));
    }
    for note in &experiment.notes {
        html.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(note)));
    }
    html.push_str("</section>\n");
    html
}

fn table(table: &Table) -> String {
    let caption = match table.title.as_str() {
        "" => String::new(),
        title => format!("<caption>{}</caption>\n", escaped(title)),
    };
    let head: String = table
        .columns
        .iter()
        .map(|column| format!("<th scope=\"col\">{}</th>", escaped(column)))
        .collect();
    let rows: String = table.rows.iter().map(|cells| row(cells, "")).collect();
    format!(
        "<div class=\"wide\"><table>\n{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn row(cells: &[String], class: &str) -> String {
    let (name, figures) = cells.split_first().map_or(("", cells), |(n, f)| (n, f));
    let figures: String = figures
        .iter()
        .map(|figure| format!("<td>{}</td>", escaped(figure)))
        .collect();
    format!(
        "<tr{class}><th scope=\"row\">{}</th>{figures}</tr>\n",
        escaped(name)
    )
}

fn targets(targets: &[Target]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let rows: String = targets
        .iter()
        .map(|target| {
            let cells = [
                target.what.clone(),
                target.wanted.clone(),
                target.measured.clone(),
                target.verdict().to_owned(),
            ];
            let class = if target.met { "met" } else { "missed" };
            row(&cells, &format!(" class=\"{class}\""))
        })
        .collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">what must hold</th><th scope=\"col\">wanted</th>\
         <th scope=\"col\">measured</th><th scope=\"col\"></th></tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Wide things scroll in their own box, so that the page never does. The plots' own elements stand directly under the
/// `svg`; what carries a colour of its own is left as it is.
const STYLE: &str = "
:root { --ink: #1c1e21; --paper: #ffffff; --faint: #d8dbdf; --soft: #5b626b; --good: #1f7a36; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e9; --paper: #15171a; --faint: #3a3f46; --soft: #a2a9b2; --good: #5cc97a; --bad: #ff8a80; }
  svg polyline, svg g { filter: brightness(1.45); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.2rem; line-height: 1.3; margin-top: 2.5rem; padding-top: 1rem; border-top: 1px solid var(--faint); }
a { color: inherit; }
.machine, .note, caption { color: var(--soft); font-size: 0.9rem; }
.warning { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; min-width: 100%; }
caption { text-align: left; padding-bottom: 0.3rem; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--faint); text-align: right; font-weight: normal;
  font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
thead th { color: var(--soft); vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; min-width: 9rem; }
td:last-child { font-weight: 600; }
.met td:last-child { color: var(--good); }
.missed td:last-child { color: var(--bad); }
@media (max-width: 32rem) {
  table { font-size: 0.8rem; }
  th, td { padding: 0.25rem 0.3rem; }
  th:first-child { min-width: 6rem; }
}
svg { display: block; width: 100%; min-width: 40rem; height: auto; }
svg > rect { fill: none; }
svg > text { fill: var(--ink); }
svg > line { stroke: var(--faint); }
";

#[cfg(test)]
mod tests {
    use super::super::tests::sample;

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_shows() {
        let mut report = sample();
        let page = report.page();
        assert!(page.starts_with("<!doctype html>"));
        assert!(page.contains("one &lt;b&gt;") && !page.contains("<b>"));
        assert!(page.contains("busy &amp; loud"));
        assert!(page.contains("<svg") && page.contains("prefers-color-scheme: dark"));
        for outside in ["<link", "<script", "src=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(!page.contains("<nav>"));
        let again = report.experiments[0].clone();
        report.experiments.push(again);
        assert!(report.page().contains("1 of 2 targets met"));
    }

    #[test]
    fn every_element_is_closed() {
        let page = sample().page();
        for element in [
            "table", "tr", "td", "thead", "tbody", "section", "div", "p", "caption",
        ] {
            let opened = page.matches(&format!("<{element}>")).count()
                + page.matches(&format!("<{element} ")).count();
            let closed = page.matches(&format!("</{element}>")).count();
            assert_eq!(opened, closed, "{element}");
            assert!(opened > 0, "{element}");
        }
    }
}
