//! A line chart as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 240.0;
const MARGIN: f64 = 40.0;

/// Points that a line has at most; more are put together, each at the largest of its values.
const POINTS_MAX: usize = 800;

/// The values in their order, from left to right.
pub fn line(title: &str, values: &[f64]) -> String {
    let each = values.len().div_ceil(POINTS_MAX).max(1);
    let points: Vec<f64> =
        values.chunks(each).map(|chunk| chunk.iter().copied().fold(0.0, f64::max)).collect();
    let most = points.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let (width, height) = (WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN);
    let mut path = String::new();
    for (at, value) in points.iter().enumerate() {
        let x = MARGIN + width * at as f64 / (points.len() - 1).max(1) as f64;
        let y = MARGIN + height * (1.0 - value / most);
        write!(path, "{x:.1},{y:.1} ").expect("a string takes everything");
    }
    let bottom = HEIGHT - MARGIN;
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif' font-size='12'>\
         <rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>\
         <text x='{MARGIN}' y='20'>{title}</text><text x='4' y='{MARGIN}'>{most:.0}</text><text x='4' y='{bottom}'>0</text>\
         <line x1='{MARGIN}' y1='{bottom}' x2='{}' y2='{bottom}' stroke='gray'/>\
         <polyline points='{path}' fill='none' stroke='steelblue'/></svg>\n",
        WIDTH - MARGIN
    )
}
