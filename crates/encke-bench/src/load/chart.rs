//! The curves of a run as an SVG picture: memory, connections and messages over time.

use crate::BenchError;
use crate::load::plot::{self, Axis, Scale};
use crate::load::report::flood::{FloodReport, Sample};
use crate::load::report::units::{bytes, count, per_second};
use std::path::Path;

/// A figure over time, and how its axis is labelled.
struct Curve {
    name: &'static str,
    colour: &'static str,
    value: fn(&Sample) -> Option<f64>,
}

/// Curves that share an axis.
struct Panel {
    title: &'static str,
    label: fn(f64) -> String,
    curves: &'static [Curve],
}

const PANELS: [Panel; 6] = [
    Panel {
        title: "connections",
        label: |value| count(value as u64),
        curves: &[Curve {
            name: "active",
            colour: "#1f6fb2",
            value: |s| Some(s.active as f64),
        }],
    },
    Panel {
        title: "clients that came and went",
        label: |value| count(value as u64),
        curves: &[
            Curve {
                name: "hung up",
                colour: "#a61e4d",
                value: |s| (s.hung_up > 0).then_some(s.hung_up as f64),
            },
            Curve {
                name: "noticed",
                colour: "#e8890c",
                value: |s| (s.hung_up > 0).then_some(s.noticed as f64),
            },
        ],
    },
    Panel {
        title: "open files of the server",
        label: |value| count(value as u64),
        curves: &[Curve {
            name: "open",
            colour: "#495057",
            value: |s| s.descriptors.map(|d| d as f64),
        }],
    },
    Panel {
        title: "messages delivered",
        label: per_second,
        curves: &[Curve {
            name: "per second",
            colour: "#2b8a3e",
            value: |s| Some(s.events_per_second),
        }],
    },
    Panel {
        title: "server memory (user)",
        label: |value| bytes(value as u64),
        curves: &[
            Curve {
                name: "RssAnon",
                colour: "#c92a2a",
                value: |s| s.memory.map(|m| m.rss_anon_bytes as f64),
            },
            Curve {
                name: "PSS",
                colour: "#e8890c",
                value: |s| s.memory.map(|m| m.pss_bytes as f64),
            },
        ],
    },
    Panel {
        title: "kernel memory (both sides)",
        label: |value| bytes(value as u64),
        curves: &[
            Curve {
                name: "both",
                colour: "#087f5b",
                value: |s| s.memory.map(|m| m.kernel_bytes() as f64),
            },
            Curve {
                name: "slabs",
                colour: "#5f3dc4",
                value: |s| s.memory.map(|m| m.kernel_slab_bytes as f64),
            },
            Curve {
                name: "TCP buffers",
                colour: "#0b7285",
                value: |s| s.memory.map(|m| m.kernel_tcp_bytes as f64),
            },
        ],
    },
];

/// Draws the report's samples into the file at `path`.
pub(crate) fn write(path: &Path, report: &FloodReport) -> Result<(), BenchError> {
    std::fs::write(path, draw(&report.samples)).map_err(BenchError::file("write", path))
}

/// The pictures of a flood's samples: a panel for each kind of figure that is known.
pub fn draw(samples: &[Sample]) -> String {
    plot::draw(&panels(samples, ""))
}

/// The same for several floods, one below the other, each with its name before its panels' titles.
pub fn draw_all<'a>(floods: impl Iterator<Item = (String, &'a [Sample])>) -> String {
    let panels: Vec<_> = floods
        .flat_map(|(name, samples)| panels(samples, &format!("{name}: ")))
        .collect();
    plot::draw(&panels)
}

fn panels(samples: &[Sample], name: &str) -> Vec<plot::Panel> {
    let is_known = |curve: &Curve| samples.iter().any(|s| (curve.value)(s).is_some());
    PANELS
        .iter()
        .filter(|panel| panel.curves.iter().any(is_known))
        .map(|panel| panel.plot(samples, name))
        .collect()
}

impl Panel {
    fn plot(&self, samples: &[Sample], name: &str) -> plot::Panel {
        plot::Panel {
            title: format!("{name}{}", self.title),
            x: Axis {
                scale: Scale::FromZero,
                label: |seconds| format!("{seconds:.0} s"),
            },
            y: Axis {
                scale: Scale::FromZero,
                label: self.label,
            },
            curves: self.curves.iter().map(|c| self.curve(c, samples)).collect(),
            marks: Vec::new(),
        }
    }

    fn curve(&self, curve: &Curve, samples: &[Sample]) -> plot::Curve {
        let points: Vec<_> = samples
            .iter()
            .filter_map(|s| Some((s.seconds, (curve.value)(s)?)))
            .collect();
        let last = points.last().map_or(0.0, |point| point.1);
        plot::Curve {
            name: format!("{}: {}", curve.name, (self.label)(last)),
            colour: curve.colour,
            dashed: false,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::probe::Memory;

    fn sample(second: u32, memory: bool) -> Sample {
        let memory = memory.then_some(Memory {
            rss_anon_bytes: 10_000_000 + u64::from(second) * 1_000,
            rss_bytes: 0,
            pss_bytes: 11_000_000,
            private_bytes: 0,
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
    fn a_panel_for_all_that_is_known_and_a_point_for_each_sample() {
        let known: Vec<_> = (0..10).map(|second| sample(second, true)).collect();
        let svg = draw(&known);
        assert_eq!(svg.matches("<polyline").count(), 7);
        let first = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert_eq!(first.split(' ').count(), 10);
        assert!(svg.contains("RssAnon: 9,774 KiB"), "{svg}");

        let two = [("few", &known[..]), ("many", &known[..5])];
        let svg = draw_all(two.into_iter().map(|(name, run)| (name.to_owned(), run)));
        assert_eq!(svg.matches("<polyline").count(), 14);
        assert!(svg.contains("few: connections") && svg.contains("many: connections"));

        let unknown: Vec<_> = (0..10).map(|second| sample(second, false)).collect();
        assert_eq!(draw(&unknown).matches("<polyline").count(), 2);
    }

    #[test]
    fn long_runs_are_thinned_and_empty_ones_drawn() {
        let long: Vec<_> = (0..100_000).map(|second| sample(second, false)).collect();
        let svg = draw(&long);
        let first = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert!((1_000..=1_500).contains(&first.split(' ').count()));
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
