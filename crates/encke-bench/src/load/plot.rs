//! Curves as an SVG picture: panels below each other, each with axes and a legend of its own.
//!
//! Colours are set where they carry meaning (curves and their names); everything else is plain elements directly under
//! the `svg`, so that a page that shows the picture can restyle it, for dark screens say.

use std::fmt::Write as _;

/// Curves that share axes.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The curves; a panel without any point shows empty axes.
    pub curves: Vec<Curve>,
    /// Places on the x axis where something happened, with what it was.
    pub marks: Vec<(f64, String)>,
}

/// How values lie on an axis, and how they are written.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// Where a value lies.
    pub scale: Scale,
    /// A value as the axis shows it.
    pub label: fn(f64) -> String,
}

/// Where a value lies on its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero to the largest value.
    FromZero,
    /// By its logarithm, from one power of ten to another. Values of zero and less are left out.
    Logarithmic,
}

/// A line through points.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour, as SVG writes it.
    pub colour: &'static str,
    /// Drawn with gaps: for figures that are not this run's own.
    pub dashed: bool,
    /// The points, in order.
    pub points: Vec<(f64, f64)>,
}

/// Draws the panels, the first one at the top.
pub fn draw(panels: &[Panel]) -> String {
    let height = PANEL_HEIGHT * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(index as f64 * PANEL_HEIGHT, &mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Panel {
    fn draw(&self, top: f64, svg: &mut String) {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let marked = self.marks.iter().map(|mark| mark.0);
        let across = Span::over(self.x.scale, points().map(|p| p.0).chain(marked));
        // A little higher than the highest value.
        let upwards = Span::over(self.y.scale, points().map(|p| p.1)).with_headroom();
        let inner = (WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM);
        let x = |value: f64| LEFT + across.share(value) * inner.0;
        let y = |value: f64| top + TOP + inner.1 - upwards.share(value) * inner.1;
        text(svg, (LEFT, top + TOP - 12.0), "start", &self.title);
        for value in upwards.ticks() {
            line(
                svg,
                (LEFT, y(value)),
                (WIDTH - RIGHT, y(value)),
                "stroke=\"#dddddd\"",
            );
            text(
                svg,
                (LEFT - 6.0, y(value) + 4.0),
                "end",
                &(self.y.label)(value),
            );
        }
        for value in across.ticks() {
            let label = (self.x.label)(value);
            text(svg, (x(value), top + PANEL_HEIGHT - 10.0), "middle", &label);
        }
        for (at, name) in &self.marks {
            let (low, high) = (top + TOP + inner.1, top + TOP);
            line(
                svg,
                (x(*at), low),
                (x(*at), high),
                "stroke=\"#888888\" stroke-dasharray=\"3 3\"",
            );
            text(svg, (x(*at) + 4.0, high + 10.0), "start", name);
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let step = curve.points.len().div_ceil(POINTS_MAX).max(1);
            let mut places = String::new();
            for &(at, value) in curve.points.iter().step_by(step) {
                if across.holds(at) && upwards.holds(value) {
                    append(&mut places, format_args!("{:.1},{:.1} ", x(at), y(value)));
                }
            }
            let dashes = if curve.dashed {
                " stroke-dasharray=\"6 4\""
            } else {
                ""
            };
            append(
                svg,
                format_args!(
                    "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{dashes} points=\"{}\"/>\n<g fill=\"{}\">",
                    curve.colour,
                    places.trim_end(),
                    curve.colour
                ),
            );
            let row = top + TOP + 12.0 + 18.0 * index as f64;
            text(svg, (WIDTH - RIGHT + 8.0, row), "start", &curve.name);
            svg.push_str("</g>\n");
        }
    }
}

/// The values that an axis shows, from the lowest to the highest.
#[derive(Debug, Clone, Copy)]
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    headroom: f64,
}

impl Span {
    fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = match scale {
            Scale::FromZero => {
                let high = values.fold(0.0, f64::max);
                (0.0, if high > 0.0 { high } else { 1.0 })
            }
            Scale::Logarithmic => {
                let (low, high) = values
                    .filter(|&value| value > 0.0 && value.is_finite())
                    .fold((f64::MAX, 0.0), |(low, high), value| {
                        (f64::min(low, value), f64::max(high, value))
                    });
                // Without a value, the axis shows one power.
                let low = if low > high { 1.0 } else { low };
                let low = 10f64.powf(low.log10().floor());
                (low, 10f64.powf(high.log10().ceil()).max(10.0 * low))
            }
        };
        Self {
            scale,
            low,
            high,
            headroom: 1.0,
        }
    }

    fn with_headroom(self) -> Self {
        let headroom = match self.scale {
            Scale::FromZero => 1.08,
            Scale::Logarithmic => 1.0,
        };
        Self { headroom, ..self }
    }

    fn holds(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == Scale::FromZero || value > 0.0)
    }

    /// Where a value lies between the ends of the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::FromZero => value / (self.high * self.headroom),
            Scale::Logarithmic => (value / self.low).log10() / (self.high / self.low).log10(),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::FromZero => (0..=4).map(|n| self.high * f64::from(n) / 4.0).collect(),
            Scale::Logarithmic => {
                let powers = (self.high / self.low).log10().round() as i32;
                (0..=powers).map(|n| self.low * 10f64.powi(n)).collect()
            }
        }
    }
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    append(
        svg,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>\n",
            at.0, at.1
        ),
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    append(
        svg,
        format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {stroke}/>\n",
            from.0, from.1, to.0, to.1
        ),
    );
}

fn append(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("writing to a string can't fail");
}

const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 190.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 28.0;

/// The most points of a curve, about: more than the picture is wide show nothing more.
const POINTS_MAX: usize = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(x: Scale, y: Scale, points: Vec<(f64, f64)>) -> Panel {
        let label = |value: f64| format!("{value}");
        Panel {
            title: "a < b & c".into(),
            x: Axis { scale: x, label },
            y: Axis { scale: y, label },
            curves: vec![Curve {
                name: "curve".into(),
                colour: "#123456",
                dashed: true,
                points,
            }],
            marks: vec![(2.0, "here".into())],
        }
    }

    fn places(svg: &str) -> Vec<(f64, f64)> {
        let list = svg.split(" points=\"").nth(1).unwrap();
        let list = list.split('"').next().unwrap();
        let number = |text: &str| text.parse().unwrap();
        list.split_whitespace()
            .map(|place| place.split_once(',').unwrap())
            .map(|(x, y)| (number(x), number(y)))
            .collect()
    }

    #[test]
    fn powers_of_ten_are_as_far_apart_as_each_other() {
        let points = vec![(10.0, 1.0), (100.0, 10.0), (1_000.0, 100.0), (0.0, 5.0)];
        let svg = draw(&[panel(Scale::Logarithmic, Scale::Logarithmic, points)]);
        let places = places(&svg);
        assert_eq!(places.len(), 3, "zero has no logarithm: {svg}");
        for axis in [|p: &(f64, f64)| p.0, |p: &(f64, f64)| -p.1] {
            let steps: Vec<f64> = places
                .windows(2)
                .map(|w| axis(&w[1]) - axis(&w[0]))
                .collect();
            assert!((steps[0] - steps[1]).abs() < 0.2, "{steps:?}");
            assert!(steps[0] > 10.0);
        }
        for label in [">10<", ">100<", ">1000<", ">here<"] {
            assert!(svg.contains(label), "{label} {svg}");
        }
    }

    #[test]
    fn even_scales_begin_at_zero_and_names_are_escaped() {
        let points = vec![(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)];
        let svg = draw(&[panel(Scale::FromZero, Scale::FromZero, points)]);
        let places = places(&svg);
        assert_eq!(places[0].0, LEFT);
        assert_eq!(places[2].0, WIDTH - RIGHT);
        assert_eq!(places[0].1, PANEL_HEIGHT - BOTTOM);
        assert!(places[2].1 > TOP);
        assert!(svg.contains("a &lt; b &amp; c"));
        assert!(svg.contains("stroke-dasharray=\"6 4\""));
    }

    #[test]
    fn nothing_at_all_is_drawn_without_a_fault() {
        for scale in [Scale::FromZero, Scale::Logarithmic] {
            let mut empty = panel(scale, scale, Vec::new());
            empty.marks.clear();
            let svg = draw(&[empty]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
