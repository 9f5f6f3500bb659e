//! The curves of a run as an SVG picture: memory, connections and messages over time.

use crate::error::FloodError;
use crate::report::flood::{FloodReport, Sample};
use crate::report::units::{bytes, count, per_second};
use std::fmt::Write as _;
use std::path::Path;

const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 190.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 28.0;

/// The most points of a curve: more than the picture is wide show nothing more.
const POINTS_MAX: usize = 1_500;

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

const PANELS: [Panel; 4] = [
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
pub(crate) fn write(path: &Path, report: &FloodReport) -> Result<(), FloodError> {
    std::fs::write(path, draw(&report.samples)).map_err(|source| FloodError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

fn draw(samples: &[Sample]) -> String {
    let step = samples.len().div_ceil(POINTS_MAX).max(1);
    let samples: Vec<&Sample> = samples.iter().step_by(step).collect();
    let panels: Vec<_> = PANELS
        .iter()
        .filter(|panel| {
            panel
                .curves
                .iter()
                .any(|curve| samples.iter().any(|s| (curve.value)(s).is_some()))
        })
        .collect();
    let height = PANEL_HEIGHT * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&samples, index as f64 * PANEL_HEIGHT, &mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Panel {
    fn draw(&self, samples: &[&Sample], top: f64, svg: &mut String) {
        let seconds_max = samples.last().map_or(1.0, |s| s.seconds).max(1.0);
        let values = || {
            self.curves
                .iter()
                .flat_map(|c| samples.iter().filter_map(|s| (c.value)(s)))
        };
        // An axis from zero, a little higher than the highest value.
        let value_max = values().fold(0.0, f64::max).max(1.0) * 1.08;
        let inner = (WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM);
        let x = |seconds: f64| LEFT + seconds / seconds_max * inner.0;
        let y = |value: f64| top + TOP + inner.1 - value / value_max * inner.1;
        text(svg, LEFT, top + TOP - 12.0, "start", self.title);
        for part in 0..=4 {
            let value = value_max / 1.08 * f64::from(part) / 4.0;
            line(svg, (LEFT, y(value)), (WIDTH - RIGHT, y(value)));
            text(svg, LEFT - 6.0, y(value) + 4.0, "end", &(self.label)(value));
            let seconds = seconds_max * f64::from(part) / 4.0;
            text(
                svg,
                x(seconds),
                top + PANEL_HEIGHT - 10.0,
                "middle",
                &format!("{seconds:.0} s"),
            );
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let mut points = String::new();
            for sample in samples {
                if let Some(value) = (curve.value)(sample) {
                    append(
                        &mut points,
                        format_args!("{:.1},{:.1} ", x(sample.seconds), y(value)),
                    );
                }
            }
            append(
                svg,
                format_args!(
                    "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n",
                    curve.colour,
                    points.trim_end()
                ),
            );
            let last = samples
                .iter()
                .rev()
                .find_map(|s| (curve.value)(s))
                .unwrap_or(0.0);
            let label = format!("{}: {}", curve.name, (self.label)(last));
            append(svg, format_args!("<g fill=\"{}\">", curve.colour));
            text(
                svg,
                WIDTH - RIGHT + 8.0,
                top + TOP + 12.0 + 18.0 * index as f64,
                "start",
                &label,
            );
            svg.push_str("</g>\n");
        }
    }
}

/// All texts are this file's own or numbers: nothing in them needs escaping.
fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    append(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"),
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    append(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\n",
            from.0, from.1, to.0, to.1
        ),
    );
}

fn append(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("writing to a string can't fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Memory;

    fn sample(second: u32, memory: bool) -> Sample {
        let memory = memory.then_some(Memory {
            rss_anon_bytes: 10_000_000 + u64::from(second) * 1_000,
            rss_bytes: 0,
            pss_bytes: 11_000_000,
            private_bytes: 0,
            kernel_tcp_bytes: 5,
            kernel_slab_bytes: 6,
        });
        Sample {
            seconds: second.into(),
            active: 100,
            closed: 0,
            failed: 0,
            events: 0,
            events_per_second: 50.0,
            acknowledged: 0,
            memory,
            server_cpu_seconds: None,
        }
    }

    #[test]
    fn a_panel_for_all_that_is_known_and_a_point_for_each_sample() {
        let known: Vec<_> = (0..10).map(|second| sample(second, true)).collect();
        let svg = draw(&known);
        assert_eq!(svg.matches("<polyline").count(), 6);
        let first = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        assert_eq!(first.split(' ').count(), 10);
        assert!(svg.contains("RssAnon: 9,774 KiB"), "{svg}");

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
        assert!((1_000..=POINTS_MAX).contains(&first.split(' ').count()));
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
