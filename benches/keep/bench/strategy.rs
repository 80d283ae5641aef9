//! Ways of making a conversation small, each to at most so many tokens, and what each leaves. All of them end with
//! nothing but what was carried over: no part of the conversation stays behind the last compaction.

use std::time::{Duration, Instant};

use epitome::compaction::ledger::Ledger;
use epitome::compaction::{Budget, Decision, Keep, Plan, Wish, Written, compacted, decide};
use epitome::config::Prune;
use epitome::recall::{ANSWER_BYTES_MAX, Ask, Clock, Log, Range};
use epitome::thread::{Change, Thread, Trigger};
use epitome::tokens::Ruler;
use jiff::tz::TimeZone;

use super::judge::{Carried, words_of};
use super::plant::Fact;
use super::session::{Session, append, follow, opened, ruler, tokens};

/// Of all that may be carried over, what the person's own words may take at first, and what the ledger may; what
/// one of them leaves free goes to the ledger, then to the person's words.
const PERSON_SHARE: f64 = 0.35;
const LEDGER_SHARE: f64 = 0.5;
/// The most that a model's summary may take of it where the ledger stands beside it.
const SUMMARY_SHARE: f64 = 0.4;
/// How often the shares are fitted.
const FITS_MAX: usize = 5;
/// A message is full from here on.
const FULL: f64 = 0.93;

/// What was carried over, and what making it took.
#[derive(Clone, Debug)]
pub struct Left {
    pub carried: Carried,
    pub tokens: u64,
    /// Of each compaction, plan and ledger.
    pub took: Vec<Duration>,
    /// What the recall tool reads in; `None` where there is no log behind what is carried over.
    pub recall: Option<Recall>,
}

/// The recall tool over one log.
#[derive(Clone, Debug)]
pub struct Recall(Log);

impl Recall {
    /// Whether a fact is found by its name and read back.
    pub fn finds(&self, fact: &Fact) -> bool {
        let text = fact.anchor.split(['`', '"', '\'']).max_by_key(|part| part.len()).unwrap_or_default();
        let searched = Ask { text: Some(text.to_owned()), ..Ask::default() };
        let hits = self.answer(&searched);
        let ranges = hits.lines().filter_map(|line| line.split_once(' ')?.0.parse::<Range>().ok());
        ranges.into_iter().any(|range| {
            let read = self.answer(&Ask { range: Some(range), ..Ask::default() });
            Carried::of_summary(&read).holds(fact)
        })
    }

    fn answer(&self, ask: &Ask) -> String {
        let clock = Clock { now: 1_775_000_000_000, zone: TimeZone::UTC };
        self.0.answer(ask, &clock, &|| false).unwrap_or_else(|error| error)
    }
}

/// The newest of the conversation, word for word.
pub fn tail(session: &Session, tokens_max: u64) -> Left {
    newest(session, tokens_max, |_, text| text)
}

/// The newest of the conversation, of older outcomes the beginning alone.
pub fn masked(session: &Session, tokens_max: u64) -> Left {
    let rule = Prune::default();
    let steps = session.steps.len();
    newest(session, tokens_max, |at, text| {
        let is_outcome = matches!(session.steps[at].change, Change::ToolFinished { .. });
        let is_old = at + rule.keep_recent < steps;
        if !(is_outcome && is_old && text.len() > rule.min_chars) {
            return text;
        }
        let head = &text[..text.floor_char_boundary(rule.keep_chars)];
        format!("[e{at}: cut, {} bytes] {head}", text.len())
    })
}

fn newest(session: &Session, tokens_max: u64, shown: impl Fn(usize, String) -> String) -> Left {
    let began = Instant::now();
    let ruler = ruler();
    let mut taken = 0;
    let mut words = Vec::new();
    for (at, step) in session.steps.iter().enumerate().rev() {
        let Some(text) = words_of(&step.change) else { continue };
        if taken >= tokens_max {
            continue;
        }
        let mut text = shown(at, text);
        let mut size = ruler.text(&text);
        while taken + size > tokens_max && !text.is_empty() {
            // Its end, as far as it fits.
            let share = (tokens_max - taken) as f64 / size as f64 * 0.98;
            let from = text.ceil_char_boundary(text.len() - (text.len() as f64 * share) as usize);
            text = text[from..].to_owned();
            size = if text.is_empty() { tokens_max - taken } else { ruler.text(&text) };
        }
        taken += size;
        words.push((at as u64, text));
    }
    words.reverse();
    let took = vec![began.elapsed()];
    Left { carried: Carried::of_words(words), tokens: taken, took, recall: None }
}

/// Nothing but a text, cut to what may be carried over.
pub fn summary(text: &str, tokens_max: u64) -> Left {
    let text = shortened(&ruler(), text, tokens_max);
    let tokens = ruler().text(&text);
    Left { carried: Carried::of_summary(&text), tokens, took: Vec::new(), recall: None }
}

fn shortened(ruler: &Ruler, text: &str, tokens_max: u64) -> String {
    let mut text = text.to_owned();
    loop {
        let tokens = ruler.text(&text);
        if tokens <= tokens_max {
            return text;
        }
        let bytes = text.len() as f64 * tokens_max as f64 / tokens as f64 * 0.98;
        text.truncate(text.floor_char_boundary(bytes as usize));
    }
}

/// What Epitome leaves: its own message, with a model's summary for each compaction or without any.
pub fn epitome(
    session: &Session,
    compactions: usize,
    tokens_max: u64,
    summary: impl Fn(usize) -> Option<String>,
) -> Result<Left, String> {
    let ruler = ruler();
    let mut thread = opened();
    let mut ledger = Ledger::default();
    let mut took = Vec::new();
    let mut from = 0;
    for (nth, cut) in session.cuts(compactions).into_iter().enumerate() {
        follow(&mut thread, &session.steps[from..cut]);
        from = cut;
        let began = Instant::now();
        ledger.follow(&thread);
        let wish = Wish { trigger: Trigger::Manual, keep: Keep::Nothing, focus: None, summary: true };
        let text = summary(nth);
        // As with the setting that asks no model, nothing is kept free for a summary that nobody writes.
        let summary_share = if text.is_some() { SUMMARY_SHARE } else { 0.0 };
        let mut shares = Shares { person: PERSON_SHARE, ledger: LEDGER_SHARE, summary: summary_share };
        let decision = decide(&ruler, &thread, &shares.budget(tokens_max), &wish);
        let planned = began.elapsed();
        let Decision::Summarise(plan) = decision else {
            return Err(format!("compaction {} of {}: {decision:?}", nth + 1, session.name));
        };
        let text = text.map(|text| shortened(&ruler, &text, (tokens_max as f64 * SUMMARY_SHARE) as u64));
        let (change, composed) = fitted(&ruler, &thread, &ledger, &plan, tokens_max, &mut shares, text)
            .map_err(|why| format!("compaction {} of {}: {why}", nth + 1, session.name))?;
        took.push(planned + composed);
        append(&mut thread, change);
    }
    let tokens = ruler.view(thread.view());
    let recall = Some(Recall(Log::of(&thread, ANSWER_BYTES_MAX)));
    Ok(Left { carried: Carried::of_view(thread.view()), tokens, took, recall })
}

/// How much of what may be carried over is whose.
struct Shares {
    person: f64,
    ledger: f64,
    summary: f64,
}

impl Shares {
    fn budget(&self, tokens_max: u64) -> Budget {
        let share = |share: f64| (tokens_max as f64 * share) as u64;
        Budget {
            window: 1_000_000,
            due_at: 1_000_000,
            reserve: 16_000,
            frame: 0,
            summary_max: share(self.summary),
            ledger_max: share(self.ledger),
            person_max: share(self.person),
            pins_max: tokens_max,
            prune: Prune::default(),
        }
    }
}

/// The change whose message takes what may be carried over and no more, as far as shares can tell; and the time of
/// making it once.
fn fitted(
    ruler: &Ruler,
    thread: &Thread,
    ledger: &Ledger,
    plan: &Plan,
    tokens_max: u64,
    shares: &mut Shares,
    summary: Option<String>,
) -> Result<(Change, Duration), String> {
    let mut best: Option<(Change, u64, Duration)> = None;
    for fit in 0..FITS_MAX {
        let written = Written { text: summary.clone(), ..Written::default() };
        let began = Instant::now();
        let id = thread.next_message();
        let change = compacted(ruler, thread, ledger, &shares.budget(tokens_max), plan, id, written)?;
        let took = began.elapsed();
        let size = tokens(ruler, &change);
        let better = match &best {
            None => true,
            Some((_, known, _)) => {
                if size <= tokens_max {
                    *known > tokens_max || size > *known
                } else {
                    size < *known
                }
            }
        };
        if better {
            best = Some((change, size, took));
        }
        let full = size as f64 / tokens_max as f64;
        if (FULL..=1.0).contains(&full) {
            break;
        }
        if full > 1.0 {
            shares.person *= 0.9 / full;
            shares.ledger *= 0.95 / full;
        } else if fit % 2 == 0 {
            shares.ledger += 1.0 - full;
        } else {
            shares.person += 1.0 - full;
        }
    }
    let (change, _, took) = best.expect("at least one was made");
    Ok((change, took))
}
