//! The screen as a function of the state: the conversation, lists and cards, the draft, and a line of status. Pure.

use std::time::Duration;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use epitome_thread::text::{round, tokens};
use epitome_thread::visible::visible_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{ChatState, EXPLAIN, SessionActivity};
use crate::complete::hint;
use crate::form::FormDialog;
use crate::keys::HELP;
use crate::markdown::Color;
use crate::picker::shown_value;
use crate::rows::{ScreenRows, ink};

/// The most rows of the draft, and of lists above it; fewer on a small screen.
const DRAFT_ROWS_MAX: u16 = 8;
const LIST_ROWS_MAX: usize = 8;

/// Prompts shown that are not in the conversation yet.
const WAITING_SHOWN_MAX: usize = 2;

/// Columns of the meter, and of the screen from which it is shown.
const METER_COLUMNS: u64 = 10;
const METER_FROM: u16 = 64;

/// The frames of the animation, and the duration of one.
const SPINNER: [&str; 8] = ["⣾", "⣽", "⣻", "⢿", "⡿", "⣟", "⣯", "⣷"];
const SPINNER_EVERY: Duration = Duration::from_millis(125);

/// Draws the chat.
pub fn draw(chat: &mut ChatState, frame: &mut Frame<'_>, now: Duration) {
    chat.forget_interrupt(now);
    let area = frame.area();
    if area.height < 3 || area.width < 4 {
        return;
    }
    let columns = usize::from(area.width);
    let card = card(chat, columns, usize::from(area.height) - 2);
    let above =
        if card.is_empty() { above_draft(chat, columns, usize::from(area.height / 3)) } else { Vec::new() };
    let lower = if card.is_empty() { draft_rows(chat, area) } else { rows_of(&card) };
    let [conversation, list, rule, input, status] = Layout::vertical([
        Constraint::Min(0),
        Constraint::Length(rows_of(&above)),
        Constraint::Length(1),
        Constraint::Length(lower),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_conversation(chat, frame, conversation);
    frame.render_widget(Paragraph::new(above), list);
    frame.render_widget(Paragraph::new(rule_line(chat, columns, now)), rule);
    if card.is_empty() {
        frame.render_widget(chat.draft.widget(), input);
        show_cursor(frame, input);
    } else {
        frame.render_widget(Paragraph::new(card), input);
    }
    frame.render_widget(Paragraph::new(status_line(chat, area.width)), status);
    if chat.has_help {
        draw_help(frame, area);
    }
}

fn rows_of(lines: &[Line<'_>]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

/// Shows the terminal's cursor in place of the one that the draft's widget paints. Input methods show their candidates at the
/// terminal's cursor, and screen readers read there.
fn show_cursor(frame: &mut Frame<'_>, input: Rect) {
    let buffer = frame.buffer_mut();
    let painted = |at: &Position| buffer[*at].modifier.contains(Modifier::REVERSED);
    if let Some(at) = input.positions().find(painted) {
        buffer[at].modifier.remove(Modifier::REVERSED);
        frame.set_cursor_position(at);
    }
}

/// The rows for the draft, which scrolls in them.
fn draft_rows(chat: &ChatState, area: Rect) -> u16 {
    let columns = usize::from(area.width);
    let rows: usize = chat.draft.widget().lines().iter().map(|line| rows_of_draft(line, columns)).sum();
    u16::try_from(rows).unwrap_or(u16::MAX).clamp(1, DRAFT_ROWS_MAX.min(area.height / 3).max(1))
}

/// The rows of a line of the draft, which its widget breaks between words, and the one for the cursor behind a full row.
fn rows_of_draft(line: &str, columns: usize) -> usize {
    let (mut rows, mut used) = (1, 0);
    for word in line.split_word_bounds() {
        let width = word.width();
        if used + width <= columns {
            used += width;
        } else {
            // A word that is wider than the screen has rows of its own.
            rows += usize::from(used > 0) + (width - 1) / columns;
            used = width.min(columns);
        }
    }
    rows + used / columns
}

fn draw_conversation(chat: &mut ChatState, frame: &mut Frame<'_>, area: Rect) {
    let is_other_width = chat.transcript.set_columns(usize::from(area.width));
    if chat.transcript.is_empty() {
        let mut rows = ScreenRows::new(usize::from(area.width));
        rows.prose("Epitome", ink(&[Color::Bold]));
        rows.prose(&format!("in {}", chat.cwd.display()), ink(&[Color::Dim]));
        frame.render_widget(Paragraph::new(rows.as_slice().to_vec()), area);
        return;
    }
    let page = usize::from(area.height);
    let height = chat.transcript.height();
    if is_other_width {
        chat.scroll.rescale(height);
    }
    chat.scroll.resize(height, page);
    let first = height.saturating_sub(page + chat.scroll.below);
    frame.render_widget(Paragraph::new(chat.transcript.rows(first, page)), area);
}

/// The rows of the card, which fit into this many; none without a card.
fn card(chat: &mut ChatState, columns: usize, rows_max: usize) -> Vec<Line<'static>> {
    if !chat.shows_card() {
        return Vec::new();
    }
    let Some(card) = chat.cards.front_mut() else { return Vec::new() };
    let (request, options) = (card.request(columns), card.options(columns));
    let room = rows_max.saturating_sub(options.len() + 1).max(1);
    let shown = request.len().min(room);
    let first = card.shown(request.len(), shown);
    let mut rows: Vec<Line<'static>> = request[first..first + shown].to_vec();
    let rest = request.len() - first - shown;
    let more = if rest > 0 { format!("↓ {rest} more rows: PageDown") } else { String::new() };
    rows.push(Line::styled(more, ink(&[Color::Yellow])));
    rows.extend(options);
    rows
}

/// The lines above the draft: a list to choose from, completions, or prompts that wait.
fn above_draft(chat: &ChatState, columns: usize, rows_max: usize) -> Vec<Line<'static>> {
    let rows_max = rows_max.clamp(1, LIST_ROWS_MAX);
    if let Some(picker) = &chat.picker {
        let heading = Line::styled(
            cut(&format!("{} (Enter, Esc) {}", picker.title, picker.filter), columns),
            ink(&[Color::Bold]),
        );
        let matching = picker.matching().into_iter();
        let entries: Vec<(String, &str)> =
            matching.map(|entry| (entry.label.clone(), entry.detail.as_str())).collect();
        if entries.is_empty() && !picker.filter.is_empty() {
            let words = if chat.is_searching { "  searching…" } else { "  nothing is found" };
            return vec![heading, Line::styled(words, ink(&[Color::Dim]))];
        }
        return std::iter::once(heading).chain(list(&entries, picker.selected, columns, rows_max)).collect();
    }
    if let Some(form) = chat.forms.front() {
        return form_rows(&form.dialog, columns, rows_max * 2);
    }
    let offered = chat.draft.offered(&chat.commands);
    if !offered.is_empty() {
        let entries: Vec<(String, &str)> = offered
            .iter()
            .map(|command| (format!("/{}", visible_line(&command.name)), command.description.as_str()))
            .collect();
        return list(&entries, chat.draft.selected(), columns, rows_max);
    }
    let files = chat.draft.offered_files(chat.files());
    if !files.is_empty() {
        let entries: Vec<(String, &str)> =
            files.into_iter().map(|file| (visible_line(file).into_owned(), "")).collect();
        return list(&entries, chat.draft.selected(), columns, rows_max);
    }
    if let Some(hint) = hint(&chat.draft.text(), &chat.commands) {
        return vec![Line::styled(cut(&format!("  {}", visible_line(hint)), columns), ink(&[Color::Dim]))];
    }
    let waiting = chat.waiting.iter().filter(|_| chat.is_busy()).take(WAITING_SHOWN_MAX);
    let row =
        |text: &String| Line::styled(cut(&format!("⏳ {}", visible_line(text)), columns), ink(&[Color::Dim]));
    waiting.map(row).collect()
}

/// A question of the agent and the field that is answered now.
fn form_rows(form: &FormDialog, columns: usize, rows_max: usize) -> Vec<Line<'static>> {
    let mut rows = ScreenRows::new(columns);
    rows.prose(form.heading(), ink(&[Color::Bold]));
    form.prompt().iter().for_each(|line| rows.prose(line, Style::new()));
    // The field is at the end.
    let rows = rows.as_slice();
    rows[rows.len().saturating_sub(rows_max)..].to_vec()
}

/// The entries around the selected one, with their details where there is room.
fn list(entries: &[(String, &str)], selected: usize, columns: usize, rows_max: usize) -> Vec<Line<'static>> {
    let first = (selected + 1).saturating_sub(rows_max);
    let label_columns = entries.iter().map(|(label, _)| label.width()).max().unwrap_or(0).min(columns / 2);
    let row = |(at, (label, detail)): (usize, &(String, &str))| {
        let style = if at == selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let label = cut(label, columns.saturating_sub(2));
        let gap = label_columns.saturating_sub(label.width()) + 2;
        let detail = cut(&visible_line(detail), columns.saturating_sub(label.width() + gap + 2));
        Line::from(vec![
            Span::styled(format!("  {label}"), style),
            Span::raw(" ".repeat(gap)),
            Span::styled(detail, ink(&[Color::Dim])),
        ])
    };
    entries.iter().enumerate().skip(first).take(rows_max).map(row).collect()
}

/// The line above the draft, with what the session does.
fn rule_line(chat: &ChatState, columns: usize, now: Duration) -> Line<'static> {
    let (text, color) = match (&chat.remark, chat.activity) {
        (Some(remark), _) => (remark.clone(), Color::Yellow),
        (None, _) if chat.explaining.is_some() => (EXPLAIN.to_owned(), Color::Yellow),
        (None, _) if chat.cards.is_empty() && !chat.forms.is_empty() => {
            ("? question · Enter answers, - declines, Esc cancels the turn".to_owned(), Color::Yellow)
        }
        (None, SessionActivity::Opening) => ("opening the session".to_owned(), Color::Dim),
        (None, SessionActivity::Working(since)) => {
            let time = now.saturating_sub(since);
            let frame = usize::try_from(time.as_millis() / SPINNER_EVERY.as_millis()).unwrap_or(0);
            let spinner = SPINNER[frame % SPINNER.len()];
            (format!("{spinner} working {} s · Esc cancels", time.as_secs()), Color::Cyan)
        }
        (None, SessionActivity::Asking) => {
            ("? permission · Enter or a number answers, Esc cancels".to_owned(), Color::Yellow)
        }
        (None, SessionActivity::Ended) => ("the connection has ended · Ctrl+C leaves".to_owned(), Color::Red),
        (None, SessionActivity::Idle) => (String::new(), Color::Dim),
    };
    let below = match chat.scroll.below {
        0 => String::new(),
        rows => format!(" ↓ {rows} rows "),
    };
    let text =
        if text.is_empty() { String::new() } else { format!(" {} ", cut(&text, columns.saturating_sub(4))) };
    let rest = columns.saturating_sub(text.width() + 2);
    let below = if below.width() < rest { below } else { String::new() };
    let dim = ink(&[Color::Dim]);
    Line::from(vec![
        Span::styled("──", dim),
        Span::styled(text, ink(&[color])),
        Span::styled("─".repeat(rest.saturating_sub(below.width())), dim),
        Span::styled(below, ink(&[Color::Cyan])),
    ])
}

/// Mode, model and title on the left, the meter on the right.
fn status_line(chat: &ChatState, columns: u16) -> Line<'static> {
    let meter = chat.usage.as_ref().map(|usage| meter(usage, columns)).unwrap_or_default();
    let named = |category| chat.option(&category).and_then(shown_value);
    let parts = [
        chat.draft.vim_mode().map(str::to_owned),
        named(wire::SessionConfigOptionCategory::Mode),
        named(wire::SessionConfigOptionCategory::Model),
        chat.title.clone(),
    ];
    let left: Vec<String> =
        parts.into_iter().flatten().map(|part| visible_line(&part).into_owned()).collect();
    let room = usize::from(columns).saturating_sub(meter.width() + 1);
    let left = cut(&left.join(" · "), room);
    let gap = " ".repeat(usize::from(columns).saturating_sub(left.width() + meter.width()));
    Line::from(vec![
        Span::styled(left, ink(&[Color::Dim])),
        Span::raw(gap),
        Span::styled(meter, ink(&[Color::Dim])),
    ])
}

fn meter(usage: &wire::UsageUpdate, columns: u16) -> String {
    let percent = usage.used.saturating_mul(100) / usage.size.max(1);
    if columns < METER_FROM {
        return format!("{percent} %");
    }
    let full = (usage.used.saturating_mul(METER_COLUMNS) / usage.size.max(1)).min(METER_COLUMNS);
    let bar = |block: &str, count: u64| block.repeat(usize::try_from(count).unwrap_or(0));
    let cost = match &usage.cost {
        MaybeUndefined::Value(cost) if cost.currency == "USD" => format!(" · ${:.2}", cost.amount),
        MaybeUndefined::Value(_) | MaybeUndefined::Null | MaybeUndefined::Undefined => String::new(),
    };
    format!(
        "{}{} {percent} % · {} of {}{cost}",
        bar("█", full),
        bar("░", METER_COLUMNS - full),
        tokens(usage.used),
        round(usage.size)
    )
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let keys = HELP.iter().map(|(keys, _)| keys.width()).max().unwrap_or(0);
    let width = area.width.min(80);
    let mut rows = ScreenRows::new(usize::from(width.saturating_sub(2)));
    for (key, does) in HELP {
        // On a narrow screen without a column for the keys.
        let gap =
            if usize::from(width) > keys + 40 { " ".repeat(keys - key.width() + 2) } else { ": ".to_owned() };
        rows.prose(&format!("{key}{gap}{does}"), Style::new());
    }
    let height = rows_of(rows.as_slice()).saturating_add(2).min(area.height);
    let shown = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, shown);
    let block = Block::new().borders(Borders::ALL).title(" Keys · any key closes ");
    frame.render_widget(Paragraph::new(rows.as_slice().to_vec()).block(block), shown);
}

/// A text of at most this many columns.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = text.chars().take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= columns
    });
    let mut cut: String = fits.collect();
    if columns > 0 {
        cut.push('…');
    }
    cut
}
