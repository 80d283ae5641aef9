//! The invariants that hold after each step.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use epitome::provider::endpoint::Endpoint;
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::{Basis, ModelRequest};
use epitome::thread::{Change, Content, Entry, OlderEntries, Seq, Thread, View};
use epitome_scripted_model::valid;
use serde_json::Value;

use super::super::checks::{self, KeptRequest};
use super::{Checked, Model, Novelty, Sent, State, frame_of};

/// The log that a restored thread reads its entries from.
#[derive(Debug)]
struct EntriesElsewhere(Vec<Arc<Entry>>);

impl OlderEntries for EntriesElsewhere {
    fn read(&self, range: Range<u64>) -> Vec<Arc<Entry>> {
        self.0[range.start as usize..range.end as usize].to_vec()
    }
}

/// Sets have no order.
fn sorted(mut state: Value) -> Value {
    for set in ["undone", "calls"] {
        if let Some(members) = state[set].as_array_mut() {
            members.sort_by_key(Value::to_string);
        }
    }
    state
}

impl Model {
    pub fn check(&mut self) -> Checked {
        self.count("steps");
        let is_rewritten = self.thread.view().revision() != self.looked_at;
        if is_rewritten {
            self.looked_at = self.thread.view().revision();
            let entries = self.thread.entries().iter().map(|entry| entry.seq);
            self.undone = entries.filter(|seq| self.thread.is_undone(*seq)).collect();
        }
        checks::same_view(self.thread.view(), &View::fold(self.thread.entries(), &self.undone))?;
        if is_rewritten {
            self.continues_from_its_state()?;
        }
        if is_rewritten && !self.undone.is_empty() {
            self.leaves_no_trace()?;
        }
        let pairs = checks::paired(self.thread.view(), self.thread.open_calls())?;
        self.count_times("pairs", pairs);
        let (looked, quoted) = checks::pins(&self.thread)?;
        self.count_times("pins", looked);
        self.count_times("pins that are quoted", quoted);
        if let Some(kept) = checks::last_request(&self.thread)? {
            self.count(match kept {
                KeptRequest::AsItIs => "last requests as they are",
                KeptRequest::Quoted => "last requests that are quoted",
                KeptRequest::InPart => "last requests that are quoted in part",
            });
        }
        // The model is only called when it is its turn to reply and every call has an outcome, including the calls of a
        // reply after which hooks added something.
        let is_asked = !self.thread.view().ends_with_agent() && self.thread.open_calls().is_empty();
        if is_asked && self.thread.frame().is_some() {
            let (encoded, novelty) = self.write()?;
            match novelty {
                Novelty::New => drop(self.look_at(&encoded)?),
                Novelty::SentBefore => {}
            }
        }
        Ok(())
    }

    /// A thread whose state was saved and read again is the same, and everything after this step is done with it.
    fn continues_from_its_state(&mut self) -> Checked {
        let json = serde_json::to_vec(self.thread.state()).map_err(|error| error.to_string())?;
        let state = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        let entries: Vec<Arc<Entry>> = self.thread.entries().iter().cloned().collect();
        let log = Arc::new(EntriesElsewhere(entries));
        let restored = Thread::restore(state, self.thread.next_seq().0, log);
        checks::same_view(restored.view(), self.thread.view())?;
        let values = |thread: &Thread| serde_json::to_value(thread.state()).map(sorted);
        if values(&restored).ok() != values(&self.thread).ok() {
            return Err("a state that was saved is another one when it is read".to_owned());
        }
        self.thread = restored;
        self.count("threads restored from their states");
        Ok(())
    }

    /// An undone layer leaves no trace in the view.
    pub(super) fn leaves_no_trace(&mut self) -> Checked {
        let is_there = |entry: &&Arc<Entry>| {
            let is_switch = matches!(entry.change, Change::Undone { .. } | Change::Redone { .. });
            !is_switch && !self.undone.contains(&entry.seq)
        };
        let entries: Vec<Arc<Entry>> = self.thread.entries().iter().filter(is_there).cloned().collect();
        let never = View::fold(&entries, &HashSet::new());
        let lines =
            |view: &View| -> Vec<String> { view.entries().iter().map(|entry| checks::line(entry)).collect() };
        let same = self.thread.view().entries().len() == never.entries().len()
            && self
                .thread
                .view()
                .entries()
                .iter()
                .zip(never.entries())
                .all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        if !same {
            return Err(format!("{:#?} is left of {:#?}", lines(self.thread.view()), lines(&never)));
        }
        self.count("views without a trace of what is undone");
        Ok(())
    }

    /// Encodes a request for the chosen model, incrementally and from scratch.
    pub(super) fn write(&mut self) -> Checked<(Encoded, Novelty)> {
        let endpoint = &self.endpoints[self.chosen];
        let (system, tools) = self.thread.frame().expect("it is framed");
        let frame = self.thread.frame_entry().expect("it is framed").seq;
        let revision = self.thread.view().revision();
        let request = ModelRequest {
            system,
            tools,
            items: self.thread.view().items(),
            thought: self.thought,
            max_output: 32_000,
            cache_key: "s",
            basis: Some(Basis { frame, revision }),
        };
        let encoded = self.encoding.encode(endpoint, &request, Purpose::Reply);
        let fresh = Encoding::default().encode(endpoint, &request, Purpose::Reply);
        checks::same_request(&encoded, &fresh)?;
        self.count("requests");
        let novelty = self.is_what_it_was(encoded.bytes())?;
        Ok((encoded, novelty))
    }

    /// Checks a request for the chosen model like its service does.
    pub(super) fn look_at(&mut self, encoded: &Encoded) -> Checked<Sent> {
        self.count("requests looked at");
        let endpoint = self.endpoints[self.chosen].clone();
        let text = String::from_utf8(encoded.bytes()).map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;

        let problems = valid::problems(endpoint.wire, &endpoint.model, &body);
        if !problems.is_empty() {
            return Err(format!("{} refuses: {problems:#?}\n{text}", endpoint.name));
        }
        let taken_back = self
            .service
            .check(endpoint.wire, &endpoint.name.0, &body)
            .map_err(|why| format!("{}: {why}\n{text}", endpoint.name))?;
        self.count_times("reasoning taken back", taken_back.len() as u64);
        self.is_made_short(&endpoint, &body).map_err(|why| format!("{}: {why}\n{text}", endpoint.name))?;
        let unmarked = without_marks(&text);
        let messages = checks::messages(endpoint.wire, &unmarked);
        let goes_on = self.goes_on(messages, &body, &taken_back);
        goes_on.map_err(|why| format!("{}: {why}", endpoint.name))?;
        Ok(Sent { messages: messages.to_owned(), body })
    }

    /// A provider's own compaction is sent only to the model that made it, unchanged and before everything else, as
    /// long as the view begins with it. It is not sent if thinking is dropped.
    fn is_made_short(&mut self, endpoint: &Endpoint, body: &Value) -> Checked {
        let is_sent = self.service.check_short(endpoint.wire, &endpoint.name.0, body)?;
        let first = self.thread.view().entries().first().map(|entry| entry.seq);
        let first = first.filter(|seq| !self.thread.is_rewritten(*seq));
        let own = first.map(|seq| &self.thread.entries()[seq.0 as usize]);
        let maker = own.and_then(|entry| match &entry.change {
            Change::Compacted { summary, .. } => summary.content.iter().find_map(|content| match content {
                Content::Thinking { native: Some(native), .. } => Some((entry.seq, native)),
                _ => None,
            }),
            _ => None,
        });
        let is_dropped = |seq: Seq| {
            let dropped = |entry: &Arc<Entry>| matches!(entry.change, Change::ThinkingDropped { through, .. } if through >= seq);
            self.thread.entries().iter().any(dropped)
        };
        let (is_due, what) = match maker {
            None => (false, None),
            Some((seq, _)) if is_dropped(seq) => (false, Some("items of a provider left out for good")),
            Some((_, native))
                if (native.provider.as_str(), &native.model) != (endpoint.provider(), &endpoint.model) =>
            {
                (false, Some("items of a provider kept from another model"))
            }
            Some(_) => (true, Some("items of a provider sent again")),
        };
        if is_sent != is_due {
            return Err(format!("what a provider made is sent: {is_sent}, and should be: {is_due}"));
        }
        if let Some(what) = what {
            self.count(what);
        }
        Ok(())
    }

    /// Earlier messages that are still in effect are sent again unchanged, including the reasoning of the
    /// reply.
    fn goes_on(&mut self, now: &str, body: &Value, taken_back: &HashSet<String>) -> Checked {
        let layers = self.holding();
        let (mut sent_again, mut continued, mut after_undo) = (0, 0, 0);
        for answered in self.answered.iter().rev().filter(|answered| answered.endpoint == self.chosen) {
            let (old, new): (Vec<Seq>, Vec<Seq>) = layers.iter().partition(|layer| **layer < answered.seq);
            let rewrites = |layer: &Seq| self.thread.entries()[layer.0 as usize].change.rewrites();
            if old != answered.layers || new.iter().any(rewrites) {
                continue;
            }
            if let Some(lost) = answered.signatures.iter().find(|signature| !taken_back.contains(*signature))
            {
                return Err(format!("{lost} is not sent again: {now}"));
            }
            sent_again += answered.signatures.len() as u64;
            // Each one begins with the previous ones.
            if continued == 0 {
                checks::continues(&answered.messages, now)?;
                if answered.frame.iter().ne(frame_of(body)) {
                    return Err(format!("system text or tools are not those of {}: {body}", answered.seq));
                }
                continued += 1;
                after_undo += u64::from(answered.seq < self.thread.view().revision());
            }
        }
        self.count_times("reasoning sent again", sent_again);
        self.count_times("requests that go on", continued);
        self.count_times("requests that go on after an undo or redo", after_undo);
        Ok(())
    }

    /// Equal states yield equal bytes, whatever was done and undone in between.
    fn is_what_it_was(&mut self, bytes: Vec<u8>) -> Checked<Novelty> {
        let in_view = |entry: &&Arc<Entry>| {
            matches!(
                entry.change,
                Change::Said { .. }
                    | Change::Replied { .. }
                    | Change::ToolFinished { .. }
                    | Change::ThinkingDropped { .. }
            )
        };
        let newest = self.thread.entries().iter().rev().find(in_view).map(|entry| entry.seq);
        let state = State {
            layers: self.holding(),
            newest: newest.unwrap_or_default(),
            endpoint: self.chosen,
            thought: self.thought as u8,
        };
        let revision = self.thread.view().revision();
        match self.sent.get(&state) {
            Some((_, before)) if *before != bytes => {
                let text = String::from_utf8_lossy;
                Err(format!("of {state:?}\nbefore: {}\nnow: {}", text(before), text(&bytes)))
            }
            Some((at, _)) => {
                let is_brought_back = *at < revision;
                self.count("states that were sent before");
                self.count_times("states brought back by undo or redo", u64::from(is_brought_back));
                Ok(Novelty::SentBefore)
            }
            None => {
                self.sent.insert(state, (revision, bytes));
                Ok(Novelty::New)
            }
        }
    }
}

/// Removes cache marks, which move and are not part of the messages.
fn without_marks(text: &str) -> Cow<'_, str> {
    const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
    if text.contains("cache_control") { text.replace(MARK, "").into() } else { text.into() }
}
