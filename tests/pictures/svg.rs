//! Draws screens as SVG, so that pictures scale and their text can be selected and searched.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use vt100::{Cell, Color, Screen};

use crate::terminal::Recording;

const CELL_WIDTH: f32 = 8.4;
const CELL_HEIGHT: f32 = 18.0;
const MARGIN: f32 = 14.0;

/// Longer pauses are shortened to this.
const PAUSE_MAX: Duration = Duration::from_millis(1_800);

/// How long the last screen stays before the animation starts again.
const LAST: Duration = Duration::from_secs(8);

const FOREGROUND: &str = "#d4d7dd";
const BACKGROUND: &str = "#16181d";

const COLOURS: [&str; 16] = [
    "#3b3f48", "#e06c75", "#8fc379", "#e0b46a", "#61a8e8", "#c07bd8", "#56b6c2", "#d4d7dd", "#7f8794",
    "#f08b93", "#a9d894", "#f0cc8c", "#84c0f4", "#d49be6", "#7fd0da", "#ffffff",
];

/// Draws the last screen, or all of them as an animation. `title` describes the picture to users who can't see it.
pub fn draw(recording: &Recording, title: &str, is_animated: bool) -> String {
    let (columns, rows) = recording.size;
    let screens = match (is_animated, recording.screens.last()) {
        (true, _) => recording.screens.as_slice(),
        (false, Some(last)) => std::slice::from_ref(last),
        (false, None) => &[],
    };
    let width = f32::from(columns) * CELL_WIDTH + 2.0 * MARGIN;
    let height = f32::from(rows) * CELL_HEIGHT + 2.0 * MARGIN;
    let mut lines = Lines { size: recording.size, numbers: HashMap::new(), definitions: String::new() };
    let mut shown: Vec<(Duration, Vec<usize>)> = Vec::new();
    for (at, screen) in screens {
        let numbers = lines.of(screen);
        if shown.last().is_none_or(|(_, before)| *before != numbers) {
            shown.push((*at, numbers));
        }
    }
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" font-family=\"ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\" \
         font-size=\"14\"><title>{}</title><defs>{}</defs><rect width=\"100%\" height=\"100%\" rx=\"8\" \
         fill=\"{BACKGROUND}\"/>",
        escaped(title),
        lines.definitions
    );
    out.push_str(&animation(&shown, height));
    let _ = write!(out, "<svg x=\"{MARGIN}\" y=\"{MARGIN}\"><g class=\"screens\" fill=\"{FOREGROUND}\">");
    for (place, (_, numbers)) in shown.iter().enumerate() {
        let offset = place as f32 * height;
        for (row, number) in numbers.iter().enumerate().filter(|(_, number)| **number != 0) {
            let y = offset + row as f32 * CELL_HEIGHT;
            let _ = write!(out, "<use href=\"#l{number}\" y=\"{y:.0}\"/>");
        }
    }
    out.push_str("</g></svg></svg>\n");
    out
}

/// Places the screens below each other; the view jumps from one to the next.
fn animation(shown: &[(Duration, Vec<usize>)], height: f32) -> String {
    let Some(((first, _), later)) = shown.split_first().filter(|(_, later)| !later.is_empty()) else {
        return String::new();
    };
    let mut before = *first;
    let mut times = vec![Duration::ZERO];
    for (at, _) in later {
        let pause = (*at - before).min(PAUSE_MAX);
        times.push(times[times.len() - 1] + pause);
        before = *at;
    }
    let total = (times[times.len() - 1] + LAST).as_secs_f32();
    let mut frames = String::new();
    for (place, time) in times.iter().enumerate() {
        let percent = time.as_secs_f32() / total * 100.0;
        let offset = place as f32 * height;
        let _ = write!(frames, "{percent:.3}%{{transform:translateY(-{offset:.0}px)}}");
    }
    format!("<style>@keyframes k{{{frames}}}.screens{{animation:k {total:.2}s step-end infinite}}</style>")
}

/// Lines that have been drawn already; most screens repeat lines of the previous one.
struct Lines {
    size: (u16, u16),
    /// Line numbers by their SVG; number 0 is an empty line.
    numbers: HashMap<String, usize>,
    definitions: String,
}

impl Lines {
    /// The numbers of the lines of a screen.
    fn of(&mut self, screen: &Screen) -> Vec<usize> {
        (0..self.size.1).map(|row| self.number(screen, row)).collect()
    }

    fn number(&mut self, screen: &Screen, row: u16) -> usize {
        let drawn = self.line(screen, row);
        if drawn.is_empty() {
            return 0;
        }
        let next = self.numbers.len() + 1;
        *self.numbers.entry(drawn).or_insert_with_key(|drawn| {
            let _ = write!(self.definitions, "<g id=\"l{next}\">{drawn}</g>");
            next
        })
    }

    /// Draws a line as runs of cells with the same style.
    fn line(&self, screen: &Screen, row: u16) -> String {
        let mut drawn = String::new();
        let mut column = 0;
        while column < self.size.0 {
            let Some(first) = screen.cell(row, column) else { break };
            let look = Look::of(first);
            let (start, mut text) = (column, String::new());
            while let Some(cell) = screen.cell(row, column).filter(|cell| Look::of(cell) == look) {
                if !cell.is_wide_continuation() {
                    text.push_str(if cell.has_contents() { cell.contents() } else { " " });
                }
                column += 1;
            }
            look.draw(&mut drawn, start, column - start, &text);
        }
        drawn
    }
}

/// The style of a cell.
#[derive(PartialEq, Eq)]
struct Look {
    colour: Option<String>,
    background: Option<String>,
    is_bold: bool,
    is_dim: bool,
    is_italic: bool,
    is_underlined: bool,
}

impl Look {
    fn of(cell: &Cell) -> Look {
        let (mut colour, mut background) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
        if cell.inverse() {
            let inverse = background.take().unwrap_or_else(|| BACKGROUND.to_owned());
            background = Some(colour.take().unwrap_or_else(|| FOREGROUND.to_owned()));
            colour = Some(inverse);
        }
        Look {
            colour,
            background,
            is_bold: cell.bold(),
            is_dim: cell.dim(),
            is_italic: cell.italic(),
            is_underlined: cell.underline(),
        }
    }

    fn draw(&self, out: &mut String, column: u16, cells: u16, text: &str) {
        let x = f32::from(column) * CELL_WIDTH;
        let width = f32::from(cells) * CELL_WIDTH;
        if let Some(background) = &self.background {
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" width=\"{width:.1}\" height=\"{CELL_HEIGHT}\" fill=\"{background}\"/>"
            );
        }
        let written = text.trim_end();
        if written.is_empty() {
            return;
        }
        // Leading spaces become an offset, so that no renderer collapses them.
        let indent = written.chars().take_while(|c| *c == ' ').count();
        let x = x + indent as f32 * CELL_WIDTH;
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"13.5\" xml:space=\"preserve\"");
        for (is_so, attribute) in [
            (self.is_bold, "font-weight=\"bold\""),
            (self.is_dim, "opacity=\"0.65\""),
            (self.is_italic, "font-style=\"italic\""),
            (self.is_underlined, "text-decoration=\"underline\""),
        ] {
            if is_so {
                let _ = write!(out, " {attribute}");
            }
        }
        if let Some(colour) = &self.colour {
            let _ = write!(out, " fill=\"{colour}\"");
        }
        let _ = write!(out, ">{}</text>", escaped(&written[indent..]));
    }
}

/// `None` for the terminal's default color.
fn colour(colour: Color) -> Option<String> {
    match colour {
        Color::Default => None,
        Color::Rgb(red, green, blue) => Some(format!("#{red:02x}{green:02x}{blue:02x}")),
        Color::Idx(index @ 0..=15) => Some(COLOURS[usize::from(index)].to_owned()),
        Color::Idx(index @ 16..=231) => {
            let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
            let cube = index - 16;
            let (red, green, blue) = (level(cube / 36), level(cube / 6 % 6), level(cube % 6));
            Some(format!("#{red:02x}{green:02x}{blue:02x}"))
        }
        Color::Idx(index) => {
            let grey = 8 + 10 * (index - 232);
            Some(format!("#{grey:02x}{grey:02x}{grey:02x}"))
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
