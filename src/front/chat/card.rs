//! A permission request on the screen: everything that it asks about, and the possible answers. Pure.

use std::time::Duration;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use ratatui::style::Style;
use ratatui::text::Line;

use crate::call::ShownCall;
use crate::markdown::Color;
use crate::rows::{ScreenRows, ink};

/// Keys within this time of the card's appearance were meant for something else.
pub const TYPED_AHEAD: Duration = Duration::from_millis(400);

/// The option that the chat adds.
const REJECT_AND_EXPLAIN: &str = "Reject, and say what to do instead";

/// See the module's documentation.
pub struct OpenCard {
    number: u64,
    call: ShownCall,
    description: Option<String>,
    options: Vec<wire::PermissionOption>,
    selected: usize,
    appeared: Duration,
    /// The first row that is shown.
    top: usize,
    /// Rows of the request and of the part of the screen for them, when it was last drawn.
    height: (usize, usize),
    /// Whether the last row was shown.
    is_read: bool,
    /// Whether all of it can be shown.
    is_whole: bool,
}

/// The effect of an answer to a permission prompt.
#[derive(Debug, PartialEq, Eq)]
pub enum CardAnswer {
    Decide(wire::PermissionOptionId),
    /// Rejects, once the user has typed what the agent should do instead.
    Explain(wire::PermissionOptionId),
    /// More has to be read, or can't be shown at all.
    Refused(&'static str),
    Ignored,
}

impl OpenCard {
    pub fn new(number: u64, request: wire::RequestPermissionRequest, now: Duration) -> OpenCard {
        let mut call = ShownCall::default();
        let mut description = request.description;
        match request.subject {
            Some(wire::RequestPermissionSubject::ToolCall(subject)) => call.update(subject.tool_call),
            Some(wire::RequestPermissionSubject::Command(command)) => {
                description = Some([description.unwrap_or_default(), command.command].join("\n"));
            }
            Some(_) | None => {}
        }
        call.update(wire::ToolCallUpdate::new("card").title(MaybeUndefined::Value(request.title)));
        OpenCard {
            number,
            call,
            description,
            options: request.options,
            selected: 0,
            appeared: now,
            top: 0,
            height: (usize::MAX, 0),
            is_read: false,
            is_whole: true,
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// It is now the card that keys answer.
    pub fn appear(&mut self, now: Duration) {
        self.appeared = now;
    }

    /// The option that rejects only this request.
    fn rejection(&self) -> Option<&wire::PermissionOption> {
        self.options.iter().find(|option| option.kind == wire::PermissionOptionKind::RejectOnce)
    }

    pub fn select(&mut self, forward: bool) {
        let count = (self.options.len() + usize::from(self.rejection().is_some())).max(1);
        self.selected = if forward { self.selected + 1 } else { self.selected + count - 1 } % count;
    }

    pub fn scroll(&mut self, rows: isize) {
        let (all, shown) = self.height;
        self.top = self.top.saturating_add_signed(rows).min(all.saturating_sub(shown));
    }

    /// Scrolls by the rows that are shown, less one.
    pub fn turn_page(&mut self, forward: bool) {
        let rows = isize::try_from(self.height.1).unwrap_or(1).max(2) - 1;
        self.scroll(if forward { rows } else { -rows });
    }

    /// The answer with this option, or with the selected one.
    pub fn answer(&mut self, option: Option<usize>, now: Duration) -> CardAnswer {
        let chosen = option.unwrap_or(self.selected);
        let (option, explains) = match (self.options.get(chosen), self.rejection()) {
            (Some(option), _) => (option, false),
            (None, Some(rejection)) if chosen == self.options.len() => (rejection, true),
            (None, _) => return CardAnswer::Ignored,
        };
        if now.saturating_sub(self.appeared) < TYPED_AHEAD {
            return CardAnswer::Ignored;
        }
        let rejects = matches!(
            option.kind,
            wire::PermissionOptionKind::RejectOnce | wire::PermissionOptionKind::RejectAlways
        );
        if !rejects && !self.is_whole {
            return CardAnswer::Refused("this change is too long to show, so you can't allow it here");
        }
        if !rejects && !self.is_read {
            return CardAnswer::Refused("there is more to read: PageDown");
        }
        match explains {
            true => CardAnswer::Explain(option.option_id.clone()),
            false => CardAnswer::Decide(option.option_id.clone()),
        }
    }

    /// The rows of the request.
    pub fn request(&mut self, columns: usize) -> Vec<Line<'static>> {
        let mut rows = ScreenRows::new(columns);
        if !self.call.repeats_title() {
            self.call.render_title(&mut rows);
            rows.end_row();
        }
        if let Some(description) = &self.description {
            rows.prose(description, ink(&[Color::Dim]));
        }
        self.is_whole = self.call.render_request(&mut rows);
        rows.as_slice().to_vec()
    }

    /// The rows of the options, with their numbers.
    pub fn options(&self, columns: usize) -> Vec<Line<'static>> {
        let mut rows = ScreenRows::new(columns);
        let names = self.options.iter().map(|option| option.name.as_str());
        let names = names.chain(self.rejection().map(|_| REJECT_AND_EXPLAIN));
        for (at, name) in names.enumerate() {
            let is_selected = at == self.selected;
            let mark = if is_selected { '›' } else { ' ' };
            let style = if is_selected { ink(&[Color::Bold, Color::Cyan]) } else { Style::new() };
            rows.prose(&format!("{mark} {}. {name}", at + 1), style);
        }
        rows.as_slice().to_vec()
    }

    /// Notes that of this many rows this many are shown, and returns the first of them.
    pub fn shown(&mut self, all: usize, shown: usize) -> usize {
        self.height = (all, shown);
        self.top = self.top.min(all.saturating_sub(shown));
        self.is_read |= self.top + shown >= all;
        self.top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1);

    fn card(lines: usize, patch: Option<&str>) -> OpenCard {
        let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();
        let place = wire::DiffPathChange::new("/w/a");
        let diff = wire::Diff::new(vec![wire::DiffChange::new(wire::DiffChangeOperation::Modify(place))])
            .with_patch(patch.map(wire::DiffPatch::new));
        let content = vec![wire::ToolCallContent::from(text), wire::ToolCallContent::Diff(diff)];
        let call = wire::ToolCallUpdate::new("c").content(content);
        let option = |id: &str, kind| wire::PermissionOption::new(id.to_owned(), id.to_owned(), kind);
        let options = vec![
            option("allow", wire::PermissionOptionKind::AllowOnce),
            option("reject", wire::PermissionOptionKind::RejectOnce),
        ];
        let subject = wire::RequestPermissionSubject::from(wire::ToolCallPermissionSubject::new(call));
        let request = wire::RequestPermissionRequest::new("s_1", "Edit `a`", options).subject(subject);
        OpenCard::new(1, request, Duration::ZERO)
    }

    fn decided(option: &str) -> CardAnswer {
        CardAnswer::Decide(option.to_owned().into())
    }

    #[test]
    fn what_was_not_shown_can_be_refused_only() {
        let mut card = card(30, Some("@@ -1 +1 @@\n-a\n+b\n"));
        let all = card.request(40).len();
        assert_eq!(all, 34);
        card.shown(all, 10);
        assert!(matches!(card.answer(Some(0), LATER), CardAnswer::Refused(why) if why.contains("PageDown")));
        assert_eq!(card.answer(Some(1), LATER), decided("reject"));
        card.scroll(10);
        card.shown(all, 10);
        assert!(matches!(card.answer(Some(0), LATER), CardAnswer::Refused(_)));
        card.scroll(1_000);
        assert_eq!(card.shown(all, 10), 24);
        assert_eq!(card.answer(Some(0), LATER), decided("allow"));
    }

    #[test]
    fn a_change_without_a_patch_cannot_be_allowed() {
        let mut card = card(1, None);
        let all = card.request(40).len();
        card.shown(all, 100);
        assert!(matches!(card.answer(None, LATER), CardAnswer::Refused(why) if why.contains("too long")));
        assert_eq!(card.answer(Some(1), LATER), decided("reject"));
    }

    /// A user who types a prompt when a card appears has not answered it.
    #[test]
    fn keys_that_were_typed_ahead_answer_nothing() {
        let mut card = card(1, Some("@@\n+a\n"));
        let all = card.request(40).len();
        card.shown(all, 100);
        assert_eq!(card.answer(None, Duration::from_millis(100)), CardAnswer::Ignored);
        assert_eq!(card.answer(Some(7), LATER), CardAnswer::Ignored);
        assert_eq!(card.answer(Some(2), LATER), CardAnswer::Explain("reject".to_owned().into()));
        card.select(true);
        assert_eq!(card.answer(None, LATER), decided("reject"));
    }

    /// Regression: a card of several changes did not say which files they change.
    #[test]
    fn changes_are_shown_with_their_files() {
        let diff = |path: &str| {
            let change = wire::DiffChangeOperation::Modify(wire::DiffPathChange::new(path));
            let diff = wire::Diff::new(vec![wire::DiffChange::new(change)]);
            wire::ToolCallContent::Diff(diff.with_patch(Some(wire::DiffPatch::new("@@ -1 +0,0 @@\n-a\n"))))
        };
        let rows_of = |title: &str, paths: &[&str]| {
            let call = wire::ToolCallUpdate::new("c")
                .content(paths.iter().map(|path| diff(path)).collect::<Vec<_>>());
            let subject = wire::RequestPermissionSubject::from(wire::ToolCallPermissionSubject::new(call));
            let request = wire::RequestPermissionRequest::new("s_1", title, Vec::new()).subject(subject);
            let rows = OpenCard::new(1, request, Duration::ZERO).request(40);
            rows.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let hunk = ["    @@ -1 +0,0 @@", "    -a"];
        assert_eq!(rows_of("Edit a.rs", &["/w/a.rs"]), [&["Edit a.rs"][..], &hunk].concat());
        let both = [&["Edit 2 files", "    /w/a.rs"][..], &hunk, &["    /w/b.rs"], &hunk].concat();
        assert_eq!(rows_of("Edit 2 files", &["/w/a.rs", "/w/b.rs"]), both);
        // A file that is moved is one change of two files.
        assert_eq!(
            rows_of("Edit 2 files", &["/w/b.rs"]),
            [&["Edit 2 files", "    /w/b.rs"][..], &hunk].concat()
        );
    }

    /// The title of most commands is the command itself, which was on the card twice.
    #[test]
    fn a_command_is_shown_once() {
        let content = vec![wire::ToolCallContent::from("```sh\nls *.rs\n```")];
        let call = wire::ToolCallUpdate::new("c").content(content);
        let subject = wire::RequestPermissionSubject::from(wire::ToolCallPermissionSubject::new(call));
        let request = wire::RequestPermissionRequest::new("s_1", "ls *.rs", Vec::new()).subject(subject);
        let mut card = OpenCard::new(1, request, Duration::ZERO);
        let shown: Vec<String> = card.request(40).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["    ls *.rs"]);
    }

    /// The model's reason was broken within words, and nothing showed where a line of the command continued.
    #[test]
    fn prose_is_broken_between_words_and_further_rows_of_a_command_are_marked() {
        let text = "```sh\ncat one && cat two\n```\n\nThe model says: `to read them`";
        let call = wire::ToolCallUpdate::new("c").content(vec![wire::ToolCallContent::from(text)]);
        let subject = wire::RequestPermissionSubject::from(wire::ToolCallPermissionSubject::new(call));
        let option = |name: &str| {
            wire::PermissionOption::new(
                "o".to_owned(),
                name.to_owned(),
                wire::PermissionOptionKind::AllowOnce,
            )
        };
        let options = vec![option("Allow"), option("Always allow this")];
        let request = wire::RequestPermissionRequest::new("s_1", "Run `cat`", options).subject(subject);
        let mut card = OpenCard::new(1, request, Duration::ZERO);
        let texts = |rows: Vec<Line<'_>>| rows.iter().map(ToString::to_string).collect::<Vec<_>>();
        let shown = ["Run cat", "    cat one &&", "  ↳ cat two", "", "The model says:", "to read them"];
        assert_eq!(texts(card.request(16)), shown);
        assert_eq!(texts(card.options(16)), ["› 1. Allow", "  2. Always", "     allow this"]);
    }

    #[test]
    fn lines_of_fences_within_a_request_are_shown() {
        let content = vec![wire::ToolCallContent::from("```sh\ncat <<E\n```\nrm -rf /\nE\n```")];
        let mut call = ShownCall::default();
        call.update(wire::ToolCallUpdate::new("c").title("Run `echo \\`x\\``").content(content));
        let mut rows = ScreenRows::new(80);
        call.render_request(&mut rows);
        let shown: Vec<String> = rows.as_slice().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["    cat <<E", "    ```", "    rm -rf /", "    E"]);
    }

    /// The card had the Markdown of its sentences, and fences.
    #[test]
    fn sentences_are_without_marks_and_code_is_exact() {
        let text = "**Outside of the sandbox**: it runs `ls`.\n\n````sh\necho `date` **a**  \n```\n\tx\n````\nWhy: `` `b` ``, __a__ \\*";
        let mut call = ShownCall::default();
        call.update(wire::ToolCallUpdate::new("c").content(vec![wire::ToolCallContent::from(text)]));
        let mut rows = ScreenRows::new(80);
        call.render_request(&mut rows);
        let shown: Vec<String> = rows.as_slice().iter().map(ToString::to_string).collect();
        let code = ["    echo `date` **a**  ", "    ```", "        x"];
        let expected =
            [&["Outside of the sandbox: it runs ls.", ""][..], &code, &["Why: `b`, __a__ \\*"]].concat();
        assert_eq!(shown, expected);
    }

    /// Regression: the title of a command was rendered as Markdown, so that the card showed another command than the one
    /// that ran, `` echo `date` `` as `echo date`. At the end of a row, it lost its blanks.
    #[test]
    fn a_command_that_is_the_title_is_exact() {
        for (kind, shown) in [
            (wire::ToolKind::Execute, ["echo `date` \\;", "↳ **a** ls **/*"]),
            (wire::ToolKind::Edit, ["echo `date` \\;", "↳ **a** ls **/*"]),
            (wire::ToolKind::Read, ["echo date \\;", "**a** ls **/*"]),
        ] {
            let call = wire::ToolCallUpdate::new("c").kind(kind);
            let subject = wire::RequestPermissionSubject::from(wire::ToolCallPermissionSubject::new(call));
            let title = "echo `date` \\; **a** ls **/*";
            let request = wire::RequestPermissionRequest::new("s_1", title, Vec::new()).subject(subject);
            let rows = OpenCard::new(1, request, Duration::ZERO).request(16);
            assert_eq!(rows.iter().map(ToString::to_string).collect::<Vec<_>>(), shown);
        }
    }
}
