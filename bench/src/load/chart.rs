//! The curves of a flood: connections, messages, memory and open files over time.

use crate::load::report::endurance::Sample;
use crate::report::plot::{self, Curve, Label, Panel};
use crate::units::{bytes_beside, count, per_second_beside};

/// Draws the samples of floods, one below the other, each with its name before its panels' titles.
pub(crate) fn draw<'a>(floods: impl IntoIterator<Item = (String, &'a [Sample])>) -> String {
    let floods = floods.into_iter();
    let panels: Vec<_> = floods
        .flat_map(|(name, samples)| panels(&name, samples))
        .collect();
    plot::draw(&panels)
}

/// A curve: its name, its colour and its value in a sample, if known.
type Line = (&'static str, usize, fn(&Sample) -> Option<f64>);

/// A panel for each kind of figure that is known.
fn panels(name: &str, samples: &[Sample]) -> Vec<Panel> {
    let panel = |title: &str, label: Label, lines: &[Line]| {
        let curve = |&(name, colour, value): &Line| {
            let points = samples.iter().filter_map(|s| Some((s.seconds, value(s)?)));
            let points: Vec<_> = points.collect();
            let last = points.last()?.1;
            let last = label(last, last);
            Some(Curve {
                name: format!("{name}: {last}"),
                colour,
                faint: false,
                points,
            })
        };
        let curves: Vec<_> = lines.iter().filter_map(curve).collect();
        let panel = Panel::over_time(format!("{name}{title}"), label, curves);
        (!panel.curves.is_empty()).then_some(panel)
    };
    let number = |value: f64, _: f64| count(value as u64);
    let size = |value: f64, most: f64| bytes_beside(value as u64, most as u64);
    let panels = [
        panel(
            "connections",
            number,
            &[("active", 0, |s| Some(s.active as f64))],
        ),
        panel(
            "clients that came and went",
            number,
            &[
                ("hung up", 1, |s| {
                    (s.hung_up > 0).then_some(s.hung_up as f64)
                }),
                ("noticed", 4, |s| {
                    (s.hung_up > 0).then_some(s.noticed as f64)
                }),
            ],
        ),
        panel(
            "open files of the server",
            number,
            &[("open", 3, |s| Some(s.descriptors? as f64))],
        ),
        panel(
            "messages delivered",
            per_second_beside,
            &[("per second", 2, |s| Some(s.events_per_second))],
        ),
        panel(
            "server memory (user)",
            size,
            &[("RssAnon", 1, |s| Some(s.memory?.rss_anon_bytes as f64))],
        ),
        panel(
            "kernel memory (both sides)",
            size,
            &[
                ("both", 2, |s| Some(s.memory?.kernel_bytes() as f64)),
                ("slabs", 3, |s| Some(s.memory?.kernel_slab_bytes as f64)),
                ("TCP buffers", 5, |s| {
                    Some(s.memory?.kernel_tcp_bytes as f64)
                }),
            ],
        ),
    ];
    panels.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::probe::Memory;

    fn sample(second: u32, memory: bool) -> Sample {
        let memory = memory.then_some(Memory {
            rss_anon_bytes: 10_000_000 + u64::from(second) * 1_000,
            kernel_tcp_bytes: 5,
            kernel_slab_bytes: 6,
            kernel_slab_other_bytes: 7,
        });
        Sample {
            seconds: second.into(),
            active: 100,
            closed: 0,
            hung_up: 0,
            noticed: 0,
            failed: 0,
            events: 0,
            events_per_second: 50.0,
            acknowledged: 0,
            memory,
            descriptors: None,
            server_cpu_seconds: None,
        }
    }

    #[test]
    fn a_curve_for_each_known_figure() {
        let known: Vec<_> = (0..10).map(|second| sample(second, true)).collect();
        let svg = draw([(String::new(), &known[..])]);
        assert_eq!(plot::legends(&svg), 6);
        assert!(svg.contains("RssAnon: 9,774 KiB"), "{svg}");

        let svg = draw([
            ("few: ".to_owned(), &known[..]),
            ("many: ".to_owned(), &known[..5]),
        ]);
        assert_eq!(plot::legends(&svg), 12);
        assert!(svg.contains("few: connections") && svg.contains("many: connections"));

        let unknown: Vec<_> = (0..10).map(|second| sample(second, false)).collect();
        assert_eq!(plot::legends(&draw([(String::new(), &unknown[..])])), 2);
    }
}
