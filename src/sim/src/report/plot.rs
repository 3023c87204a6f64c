//! Plots as inline SVG. Colours are classes: the page's style gives them, light or dark.

use std::fmt::Write as _;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// A line with a name.
pub(super) struct Line {
    pub(super) name: String,
    /// Which colour, from 0.
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// How an axis runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// By powers of ten; what is not above 0 lies at the start.
    Log,
}

struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let usable = values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0));
        let least = usable.clone().reduce(f64::min).unwrap_or(1.0);
        let most = usable.reduce(f64::max).unwrap_or(1.0);
        match scale {
            Scale::Linear => Self { scale, from: 0.0, to: nice(most).max(1e-9) },
            Scale::Log => Self {
                scale,
                from: least.log10().floor(),
                to: most.log10().ceil().max(least.log10().floor() + 1.0),
            },
        }
    }

    /// Share of the axis at which a value lies.
    fn share(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Log { value.max(1e-300).log10() } else { value };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => (0..=4).map(|tick| self.to * f64::from(tick) / 4.0).collect(),
            Scale::Log => (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power)).collect(),
        }
    }
}

/// The next number that is 1, 2, 2.5, 5 or 8 times a power of ten.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value * 0.999_999).unwrap_or(value)
}

/// A number as short as it can be read.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{} M", trimmed(value / 1e6))
    } else if size >= 1e4 {
        format!("{} k", trimmed(value / 1e3))
    } else {
        trimmed(value)
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text inside HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn x_of(axis: &Axis, value: f64) -> f64 {
    LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)
}

fn y_of(axis: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)
}

fn frame(x: Option<&Axis>, y: &Axis, x_label: &str, y_percent: bool) -> String {
    let mut svg =
        format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escaped(x_label));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y.ticks() {
        let at = y_of(y, tick);
        let label = if y_percent { format!("{} %", trimmed(tick * 100.0)) } else { short(tick) };
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/>"#);
        let _ = write!(
            svg,
            r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 6.0,
            at + 3.5
        );
    }
    for tick in x.map(Axis::ticks).unwrap_or_default() {
        let at = x.map_or(LEFT, |axis| x_of(axis, tick));
        let _ = write!(svg, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{bottom}"/>"#);
        let _ = write!(
            svg,
            r#"<text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            bottom + 14.0,
            short(tick)
        );
    }
    let _ = write!(
        svg,
        r#"<text class="label" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        (LEFT + right) / 2.0,
        HEIGHT - 4.0,
        escaped(x_label)
    );
    svg
}

/// Lines over two axes; `y_percent` writes shares as percent.
pub(super) fn lines(lines: &[Line], x_scale: Scale, x_label: &str, y_percent: bool) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::of(x_scale, all().map(|point| point.0));
    let y = if y_percent {
        Axis { scale: Scale::Linear, from: 0.0, to: 1.0 }
    } else {
        Axis::of(Scale::Linear, all().map(|point| point.1))
    };
    let mut svg = frame(Some(&x), &y, x_label, y_percent);
    for line in lines {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x_of(&x, *at), y_of(&y, *value)))
            .collect();
        let _ = write!(
            svg,
            r#"<polyline class="line c{}" points="{}"><title>{}</title></polyline>"#,
            line.colour,
            points.join(" "),
            escaped(&line.name)
        );
    }
    svg + "</svg>"
}

/// Groups of bars, each bar in the colour of its place; `limit` is a line across.
pub(super) fn bars(groups: &[Vec<(String, f64)>], x_label: &str, limit: Option<(&str, f64)>) -> String {
    let values = groups.iter().flatten().map(|(_, value)| *value).chain(limit.map(|(_, value)| value));
    let y = Axis::of(Scale::Linear, values);
    let mut svg = frame(None, &y, x_label, false);
    let group_width = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    for (place, group) in groups.iter().enumerate() {
        let width = group_width * 0.84 / group.len().max(1) as f64;
        for (colour, (name, value)) in group.iter().enumerate() {
            let x = LEFT + group_width * (place as f64 + 0.08) + width * colour as f64;
            let top = y_of(&y, *value);
            let _ = write!(
                svg,
                r#"<rect class="bar c{colour}" x="{x:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{}: {}</title></rect>"#,
                (width - 1.0).max(0.5),
                HEIGHT - BOTTOM - top,
                escaped(name),
                short(*value)
            );
        }
    }
    if let Some((name, value)) = limit {
        let at = y_of(&y, value);
        let _ = write!(
            svg,
            r#"<line class="limit" x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}"><title>{}: {}</title></line>"#,
            WIDTH - RIGHT,
            escaped(name),
            short(value)
        );
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_numbers_that_read_well() {
        assert_eq!([0.0, 0.7, 3.0, 41.0, 5000.0, 8100.0].map(nice), [1.0, 0.8, 4.0, 50.0, 5000.0, 10_000.0]);
        assert_eq!([0.5, 250.0, 12_500.0, 3.2e6].map(short), ["0.5", "250", "12.5 k", "3.2 M"]);
    }

    #[test]
    fn values_out_of_an_axis_stay_in_the_plot() {
        let axis = Axis::of(Scale::Log, [0.0, 3.0, 2000.0].into_iter());
        assert_eq!((axis.from, axis.to), (0.0, 4.0));
        assert_eq!((axis.share(0.0), axis.share(100.0), axis.share(1e9)), (0.0, 0.5, 1.0));
    }
}
