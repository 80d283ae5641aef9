//! Token counts compared with real vocabularies: o200k and cl100k (from tiktoken-rs, MIT), and Qwen's (from
//! the package dashscope, Apache-2.0, in the format that `src/core/tokens/vocabulary/convert.py` writes).
//!
//! A vocabulary stands in for a provider: its count is what the provider would report. The targets: within 10
//! % before the first reply of a model, within 3 % after it.

mod texts;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, ModelName, Native, Origin, Seq, SessionId, Thread, Usage,
};
use epitome::tokens::{Calibration, Count, Counter, ExactCounter as _, Ruler, Vocabulary, estimate};
use tiktoken_rs::CoreBPE;

const QWEN: &[u8] = include_bytes!("tokens/qwen.bin");
const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tokens that these providers add to every message, and to every request.
const PER_MESSAGE: u64 = 4;
const PER_REQUEST: u64 = 120;

struct Provider {
    model: ModelName,
    vocabulary: CoreBPE,
    /// Kinds of text for which its vocabulary deviates by more than 10 % from Epitome's.
    off: &'static [&'static str],
}

impl Provider {
    fn count(&self, text: &str) -> u64 {
        self.vocabulary.encode_ordinary(text).len() as u64
    }
}

fn providers() -> [Provider; 3] {
    let known = |name: &str, vocabulary, off| Provider { model: ModelName(name.to_owned()), vocabulary, off };
    [
        known("openai/gpt-5", tiktoken_rs::o200k_base().expect("embedded"), &[]),
        // An old model's vocabulary, with few Chinese words.
        known("openai/gpt-4", tiktoken_rs::cl100k_base().expect("embedded"), &["chinese"]),
        known("local/qwen3", qwen(), &[]),
    ]
}

fn qwen() -> CoreBPE {
    let planes = miniz_oxide::inflate::decompress_to_vec(QWEN).expect("written by the script");
    let count = planes.len() / 6;
    let part = |side: usize, at: usize| {
        (0..3).map(|byte| usize::from(planes[(side * 3 + byte) * count + at]) << (8 * byte)).sum::<usize>()
    };
    let mut tokens: Vec<Vec<u8>> = Vec::with_capacity(count);
    for rank in 0..count {
        let token = match part(0, rank).checked_sub(0xff_ff00) {
            Some(byte) => vec![byte as u8],
            None => [&tokens[part(0, rank)][..], &tokens[part(1, rank)]].concat(),
        };
        tokens.push(token);
    }
    CoreBPE::new(tokens.into_iter().zip(0..).collect(), Default::default(), QWEN_PATTERN).expect("a pattern")
}

fn vocabulary() -> Arc<Vocabulary> {
    static LOADED: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    LOADED.get_or_init(|| Arc::new(Vocabulary::load().expect("it is embedded"))).clone()
}

fn percent(counted: u64, real: u64) -> f64 {
    (counted as f64 / real as f64 - 1.0) * 100.0
}

#[test]
fn the_embedded_vocabulary_counts_like_o200k() {
    let real = tiktoken_rs::o200k_base().expect("embedded");
    let odd = ["", " ", "\r\n\t x", "naïve café — “quoted” 👩‍👩‍👧", "<|endoftext|>", "a\u{0}b", "ﷺ𝔘𝔫𝔦 नमस्ते สวัสดี"];
    let texts = texts::texts().into_iter().map(|(_, text)| text).chain(odd.map(str::to_owned));
    for text in texts {
        assert_eq!(vocabulary().count(&text), real.encode_ordinary(&text).len() as u64, "{text}");
    }
}

/// Only samples of a very long text are counted.
#[test]
fn a_very_long_text_is_counted_approximately() {
    let real = tiktoken_rs::o200k_base().expect("embedded");
    for (kind, text) in texts::texts() {
        let long = text.repeat(400_000 / text.len());
        let error = percent(vocabulary().count(&long), real.encode_ordinary(&long).len() as u64);
        assert!(error.abs() <= 3.0, "{kind}: {error:+.1} %");
    }
}

#[test]
fn an_estimate_without_a_vocabulary_is_within_20_percent() {
    let real = tiktoken_rs::o200k_base().expect("embedded");
    for (kind, text) in texts::texts() {
        let error = percent(estimate(&text), real.encode_ordinary(&text).len() as u64);
        println!("{kind:8} {error:+6.1} %");
        assert!(error.abs() <= 20.0, "{kind}: {error:+.1} %");
    }
    assert_eq!((estimate(""), estimate(" "), estimate("a")), (0, 1, 1));
}

#[test]
fn before_the_first_reply_a_count_is_within_10_percent() {
    for provider in providers() {
        let ruler = Ruler::for_model(Some(&provider.model)).exact(Some(vocabulary()));
        for (kind, text) in texts::texts() {
            let error = percent(ruler.text(&text), provider.count(&text));
            println!("{:12} {kind:8} {error:+6.1} %", provider.model.0);
            let expected_off = provider.off.contains(&kind);
            assert_eq!(error.abs() > 10.0, expected_off, "{} {kind}: {error:+.1} %", provider.model);
        }
    }
}

/// A conversation with a provider that reports counts by its own vocabulary.
struct Talk {
    thread: Thread,
    /// The provider's count of the conversation.
    real: u64,
}

impl Talk {
    fn new() -> Talk {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: PathBuf::from("/w") };
        let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        Talk { thread: Thread::replay([opened]).expect("an opened thread"), real: PER_REQUEST }
    }

    fn append(&mut self, change: Change) {
        let seq = self.thread.next_seq();
        self.thread.apply(Arc::new(Entry { seq, at: 0, change }));
    }

    fn say(&mut self, provider: &Provider, text: &str) {
        let message = self.message(provider, text);
        self.append(Change::Said { message, origin: Origin::Person });
    }

    fn reply(&mut self, provider: &Provider, text: &str) {
        let input = self.real;
        let message = self.message(provider, text);
        let usage = Some(Usage { input, output: self.real - input, ..Usage::default() });
        self.append(Change::Replied { message, model: provider.model.clone(), usage, cut: None });
    }

    fn message(&mut self, provider: &Provider, text: &str) -> Message {
        self.real += provider.count(text) + PER_MESSAGE;
        Message {
            id: self.thread.next_message(),
            content: vec![Content::Text { text: text.to_owned() }],
            author: None,
        }
    }
}

#[test]
fn after_a_reply_a_count_is_within_3_percent() {
    for provider in providers() {
        let ruler = Ruler::for_model(Some(&provider.model)).exact(Some(vocabulary()));
        let mut counter = Counter::default();
        let mut talk = Talk::new();
        talk.append(Change::Framed { system: texts::prose(), tools: Vec::new() });
        talk.real += provider.count(&texts::prose());
        talk.say(&provider, &[texts::code(), texts::log()].concat());
        let sent = counter.request(&ruler, &talk.thread).expect("counted whole");
        let mut calibration: Calibration = ruler.calibration();
        calibration.learn(sent, talk.real);
        talk.reply(&provider, "I have read both.");
        let ruler = ruler.calibrated(calibration);
        // After one reply nothing else is reported while prompts of every kind follow.
        for (kind, text) in texts::texts() {
            talk.say(&provider, &text[..text.floor_char_boundary(text.len() / 4)]);
            let error = percent(counter.in_context(&ruler, &talk.thread), talk.real);
            println!("{:12} behind {kind:8} {error:+6.1} %", provider.model.0);
            assert!(error.abs() <= 3.0, "{} {kind}: {error:+.1} %", provider.model);
        }
        // Without the anchor, the learned calibration remains.
        let whole = counter.request(&ruler, &talk.thread).expect("counted whole");
        let error = percent(ruler.fit(whole) + calibration.overhead(), talk.real);
        println!("{:12} without an anchor {error:+6.1} %", provider.model.0);
        assert!(error.abs() <= 5.0, "{}: {error:+.1} %", provider.model);
    }
}

/// A first request teaches little, and a file that follows may be of a kind for which vocabularies differ:
/// for base64 the smaller ones count 5 % more. The decision whether it fits uses an upper bound.
#[test]
fn a_huge_tail_after_a_small_first_request_is_not_underestimated() {
    for provider in providers() {
        let ruler = Ruler::for_model(Some(&provider.model)).exact(Some(vocabulary()));
        for (kind, text) in texts::texts() {
            let mut counter = Counter::default();
            let mut talk = Talk::new();
            talk.append(Change::Framed { system: texts::prose(), tools: Vec::new() });
            talk.real += provider.count(&texts::prose());
            talk.say(&provider, "Say what this is.");
            let sent = counter.request(&ruler, &talk.thread).expect("counted whole");
            let mut calibration = ruler.calibration();
            calibration.learn(sent, talk.real);
            talk.reply(&provider, "Show me.");
            talk.say(&provider, &text.repeat(200_000 / text.len()));
            let ruler = ruler.clone().calibrated(calibration);
            let error = percent(counter.in_context(&ruler, &talk.thread), talk.real);
            let at_most = percent(counter.at_most(&ruler, &talk.thread), talk.real);
            println!("{:12} then {kind:8} {error:+6.1} %, at most {at_most:+6.1} %", provider.model.0);
            if provider.off.contains(&kind) {
                continue;
            }
            assert!(error.abs() <= 5.5, "{} {kind}: {error:+.1} %", provider.model);
            assert!(at_most >= 0.0, "{} {kind}: at most {at_most:+.1} %", provider.model);
        }
    }
}

/// Regression: after much thinking, which had not been sent back, a report was too small to be believed, so conversations
/// were compacted that filled little of the window.
#[test]
fn reports_are_believed_although_thinking_was_not_sent() {
    let model = ModelName("anthropic/claude-sonnet-5-5".into());
    let ruler = Ruler::for_model(Some(&model));
    for is_thinking in [true, false] {
        let mut talk = Talk::new();
        let text = texts::prose().repeat(100);
        let (provider, data) = ("anthropic".to_owned(), serde_json::Value::Null);
        let native = Some(Native { provider, model: "claude-sonnet-5-5".to_owned(), data });
        let part = if is_thinking { Content::Thinking { text, native } } else { Content::Text { text } };
        let message = Message { id: talk.thread.next_message(), content: vec![part], author: None };
        let usage = Some(Usage { input: 100, output: 100, ..Usage::default() });
        talk.append(Change::Replied { message, model: model.clone(), usage, cut: None });
        let at_most = Counter::default().at_most(&ruler, &talk.thread);
        assert_eq!(at_most == 200, is_thinking, "{at_most}");
    }
}

/// A provider that counts less than we do reported 4,000 tokens for what we estimated as 6,500, and after a
/// compaction our own estimate of 4,600 for the rest was shown: the context had grown by shrinking.
#[test]
fn a_shrinking_view_never_increases_the_context() {
    let ruler = Ruler::for_model(Some(&ModelName("openai/gpt-5".into())));
    let mut talk = Talk::new();
    talk.append(Change::Framed { system: texts::prose(), tools: Vec::new() });
    let frame = ruler.frame_of(&talk.thread);
    let then = |now, view| ruler.in_context_then(&talk.thread, now, view);
    // If a provider counts like we do, or more, the difference is subtracted.
    assert_eq!(then(frame + 10_000, (10_000, 1_000)), frame + 1_000);
    assert_eq!(then(frame + 15_000, (10_000, 1_000)), frame + 6_000);
    // If it counts half as much as we do, half of the difference is.
    let half = (frame + 10_000) / 2;
    assert!(then(half, (10_000, 1_000)).abs_diff(half - 4_500) <= 1);
    for now in [1, 900, 40_000, u64::MAX] {
        for (before, after) in [(10_000, 0), (10_000, 9_999), (0, 0), (u64::MAX / 2, 7)] {
            let then = then(now, (before, after));
            assert!(then <= now && (then > 0 || frame == 0), "{now}, {before} → {after}: {then}");
        }
    }
}

/// As soon as the vocabulary was loaded, a number that had already been shown changed.
#[test]
fn a_displayed_estimate_is_kept_and_new_entries_are_counted_exactly() {
    let estimating = Ruler::for_model(Some(&ModelName("openai/gpt-5".into())));
    let counting = estimating.clone().exact(Some(vocabulary()));
    let mut counter = Counter::default();
    let mut talk = Talk::new();
    talk.append(Change::Framed { system: texts::prose(), tools: Vec::new() });
    talk.say(&providers()[0], &texts::log());
    let shown = counter.in_context(&estimating, &talk.thread);
    assert_eq!(counter.in_context(&counting, &talk.thread), shown);
    assert_ne!(Counter::default().in_context(&counting, &talk.thread), shown);
    talk.say(&providers()[0], &texts::code());
    assert_eq!(
        counter.in_context(&counting, &talk.thread),
        shown + counting.entry(talk.thread.entries().last().expect("it was said"))
    );
}

#[test]
fn before_the_first_reply_decisions_use_an_upper_bound() {
    let real = tiktoken_rs::o200k_base().expect("embedded");
    let at_most = |ruler: Ruler, counted| ruler.at_most(Count { reported: 0, counted });
    for (kind, text) in texts::texts() {
        // Estimates without the vocabulary.
        let ruler = Ruler::for_model(Some(&ModelName("openai/gpt-5".into())));
        let tokens = real.encode_ordinary(&text).len() as u64;
        assert!(at_most(ruler.clone(), ruler.text(&text)) >= tokens, "{kind}");
    }
    // Claude's vocabulary is not public; according to reports, 1.15 times our count is too little.
    let claude =
        Ruler::for_model(Some(&ModelName("anthropic/claude-sonnet-5-5".into()))).exact(Some(vocabulary()));
    let counted = claude.text(&texts::prose());
    let ours = vocabulary().count(&texts::prose());
    assert!(percent(at_most(claude, counted), ours) >= 40.0);
}
