//! Curves as an SVG picture: panels below each other, each with axes and a legend of its own.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Curves that share axes.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// What is shown.
    pub(crate) title: String,
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axis.
    pub(crate) y: Axis,
    /// The curves; a panel without any point shows empty axes.
    pub(crate) curves: Vec<Curve>,
    /// Labelled places on the x axis.
    pub(crate) marks: Vec<(f64, String)>,
}

/// The scale and the labels of an axis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    /// Where a value lies.
    pub(crate) scale: Scale,
    /// The text of a value.
    pub(crate) label: Label,
}

/// The text of a value, on an axis up to another one: all values of an axis have one unit.
pub(crate) type Label = fn(f64, f64) -> String;

/// Where a value lies on its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, from zero to the largest value.
    FromZero,
    /// Logarithmic, between powers of ten. Values of zero and less are left out.
    Logarithmic,
}

/// A line through points.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Which of the [`COLOURS`] it has.
    pub(crate) colour: usize,
    /// Drawn half transparent: a figure that is quoted, or the lower of a pair.
    pub(crate) faint: bool,
    /// The points, in order.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Colours that are easy to distinguish on white and on black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x6f, 0xb2),
    RGBColor(0xc9, 0x2a, 0x2a),
    RGBColor(0x2b, 0x8a, 0x3e),
    RGBColor(0x5f, 0x3d, 0xc4),
    RGBColor(0xe8, 0x89, 0x0c),
    RGBColor(0x99, 0x4f, 0x00),
];

/// Draws the panels, the first one at the top.
pub(crate) fn draw(panels: &[Panel]) -> String {
    let mut svg = String::new();
    let size = (WIDTH, PANEL_HEIGHT * panels.len().max(1) as u32);
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = root.fill(&WHITE).and_then(|()| {
            let areas = root.split_evenly((panels.len().max(1), 1));
            let mut each = panels.iter().zip(&areas);
            each.try_for_each(|(panel, area)| panel.draw(area))
        });
        drawn.expect("writing to a string can't fail");
    }
    svg
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

impl Panel {
    /// Curves over seconds from zero.
    pub(crate) fn over_time(title: String, label: Label, curves: Vec<Curve>) -> Self {
        Self {
            title,
            x: Axis {
                scale: Scale::FromZero,
                label: |seconds, _| format!("{seconds:.1} s"),
            },
            y: Axis {
                scale: Scale::FromZero,
                label,
            },
            curves,
            marks: Vec::new(),
        }
    }

    fn draw<'a>(&self, area: &Area<'a>) -> Drawn<'a> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let marked = self.marks.iter().map(|mark| mark.0);
        let (x0, x1) = self.x.scale.span(points().map(|p| p.0).chain(marked));
        let (y0, y1) = self.y.scale.span(points().map(|p| p.1));
        match (self.x.scale, self.y.scale) {
            (Scale::FromZero, Scale::FromZero) => self.chart(area, x0..x1, y0..y1 * 1.08),
            (Scale::FromZero, Scale::Logarithmic) => self.chart(area, x0..x1, (y0..y1).log_scale()),
            (Scale::Logarithmic, Scale::FromZero) => {
                self.chart(area, (x0..x1).log_scale(), y0..y1 * 1.08)
            }
            (Scale::Logarithmic, Scale::Logarithmic) => {
                self.chart(area, (x0..x1).log_scale(), (y0..y1).log_scale())
            }
        }
    }

    /// The highest value of each axis.
    fn highest(&self) -> (f64, f64) {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        points.fold((0.0, 0.0), |(x, y), point| {
            (f64::max(x, point.0), f64::max(y, point.1))
        })
    }

    fn chart<'a, X, Y>(
        &self,
        area: &Area<'a>,
        x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
        y: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
    ) -> Drawn<'a>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let highest = self.highest();
        let (left, legend) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
        let mut chart = ChartBuilder::on(&left)
            .caption(&self.title, FONT)
            .margin(6)
            .x_label_area_size(24)
            .y_label_area_size(90)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .axis_style(BLACK.mix(0.4))
            .label_style(FONT)
            .y_labels(5)
            .x_label_formatter(&|value| (self.x.label)(*value, highest.0))
            .y_label_formatter(&|value| (self.y.label)(*value, highest.1))
            .draw()?;
        let heights = chart.plotting_area().get_y_range();
        for (at, name) in &self.marks {
            let line = [(*at, heights.start), (*at, heights.end)];
            let grey = BLACK.mix(0.4);
            chart.draw_series(LineSeries::new(line, grey))?;
            let text = Text::new(name.clone(), (*at, heights.end), FONT);
            chart.draw_series([text])?;
        }
        for (row, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[curve.colour % COLOURS.len()];
            let step = curve.points.len().div_ceil(POINTS_MAX).max(1);
            let points = curve.points.iter().copied().step_by(step);
            let points = points.filter(|p| self.x.scale.holds(p.0) && self.y.scale.holds(p.1));
            let stroke = colour.mix(if curve.faint { 0.4 } else { 1.0 });
            chart.draw_series(LineSeries::new(points, stroke.stroke_width(2)))?;
            let style = FONT.into_font().color(&colour);
            let style = style.pos(Pos::new(HPos::Left, VPos::Top));
            legend.draw(&Text::new(
                curve.name.clone(),
                (4, 30 + 22 * row as i32),
                style,
            ))?;
        }
        Ok(())
    }
}

impl Scale {
    /// The lowest and the highest value of an axis.
    fn span(self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = values
            .filter(|value| self.holds(*value))
            .fold((f64::MAX, 0.0), |(low, high), value| {
                (f64::min(low, value), f64::max(high, value))
            });
        match self {
            Self::FromZero if high > 0.0 => (0.0, high),
            Self::Logarithmic if high > 0.0 => {
                let low = 10f64.powf(low.log10().floor());
                (low, 10f64.powf(high.log10().ceil()).max(10.0 * low))
            }
            Self::FromZero => (0.0, 1.0),
            Self::Logarithmic => (1.0, 10.0),
        }
    }

    fn holds(self, value: f64) -> bool {
        value.is_finite() && (self == Self::FromZero || value > 0.0)
    }
}

const FONT: (&str, u32) = ("sans-serif", 16);

const WIDTH: u32 = 900;
const LEGEND_WIDTH: u32 = 230;
const PANEL_HEIGHT: u32 = 220;

/// The most points of a curve, about: more than the picture is wide show nothing more.
const POINTS_MAX: usize = 1_500;

/// The number of legends, which is that of the curves.
#[cfg(test)]
pub(crate) fn legends(svg: &str) -> usize {
    let texts = svg.split("<text").skip(1);
    texts
        .filter(|text| !text.contains("fill=\"#000000\""))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(x: Scale, y: Scale, points: Vec<(f64, f64)>) -> Panel {
        let label = |value: f64, _: f64| format!("{value}");
        Panel {
            title: "a < b & c".into(),
            x: Axis { scale: x, label },
            y: Axis { scale: y, label },
            curves: vec![Curve {
                name: "curve".into(),
                colour: 0,
                faint: false,
                points,
            }],
            marks: vec![(2.0, "here".into())],
        }
    }

    /// The points of the curve in the picture.
    fn places(svg: &str) -> Vec<(i32, i32)> {
        let curve = svg.split("<polyline").find(|line| line.contains("#1F6FB2"));
        let list = curve.unwrap().split("points=\"").nth(1).unwrap();
        let list = list.split('"').next().unwrap();
        let number = |text: &str| text.parse().unwrap();
        list.split_whitespace()
            .map(|place| place.split_once(',').unwrap())
            .map(|(x, y)| (number(x), number(y)))
            .collect()
    }

    #[test]
    fn powers_of_ten_are_evenly_spaced() {
        let points = vec![(10.0, 1.0), (100.0, 10.0), (1_000.0, 100.0), (0.0, 5.0)];
        let svg = draw(&[panel(Scale::Logarithmic, Scale::Logarithmic, points)]);
        let places = places(&svg);
        assert_eq!(places.len(), 3, "zero has no logarithm: {svg}");
        for axis in [|p: &(i32, i32)| p.0, |p: &(i32, i32)| -p.1] {
            let steps: Vec<_> = places
                .windows(2)
                .map(|w| axis(&w[1]) - axis(&w[0]))
                .collect();
            assert!((steps[0] - steps[1]).abs() <= 1, "{steps:?}");
            assert!(steps[0] > 10);
        }
        assert!(svg.contains("here") && svg.contains("curve") && svg.contains("1000"));
    }

    #[test]
    fn linear_scales_begin_at_zero_and_names_are_escaped() {
        let points = vec![(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)];
        let svg = draw(&[panel(Scale::FromZero, Scale::FromZero, points)]);
        let places = places(&svg);
        let steps = [1, 2].map(|n: usize| places[n].0 - places[n - 1].0);
        assert!((steps[0] - steps[1]).abs() <= 1, "{steps:?}");
        assert!(places[0].1 > places[2].1 && places[0].0 < places[2].0);
        assert!(svg.contains("a &lt; b &amp; c"));
    }

    #[test]
    fn long_curves_are_thinned() {
        let points = (0..100_000).map(|n| (f64::from(n), 1.0)).collect();
        let svg = draw(&[panel(Scale::FromZero, Scale::FromZero, points)]);
        assert!((1_000..=1_500).contains(&places(&svg).len()));
    }

    #[test]
    fn empty_panels_are_drawn() {
        for scale in [Scale::FromZero, Scale::Logarithmic] {
            let mut empty = panel(scale, scale, Vec::new());
            empty.marks.clear();
            let svg = draw(&[empty]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(draw(&[]).trim_end().ends_with("</svg>"));
    }
}
