//! What a sentence is: a rule, a decision, a task, or talk. Pure.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::cues::{Class, Hit};
use super::fact::{Kind, Value};
use super::spoken::{FACT_BYTES_MAX, Side};
use super::values;
use super::words::Set;

/// So does a sentence begin in which the agent says what it does right now.
const CHATTER: &[&str] = &[
    "let me",
    "let's check",
    "let's see",
    "let's look",
    "let’s check",
    "let’s see",
    "let’s look",
    "i'll ",
    "i’ll ",
    "i will ",
    "i'm going to ",
    "i’m going to ",
    "i need to",
    "now i",
    "now let",
    "now for",
    "now to",
    "now the",
    "first,",
    "first i'll",
    "first i will",
    "first i need",
    "first let",
    "looking",
    "next, i",
    "next i",
    "great,",
    "great!",
    "good,",
    "good!",
    "one moment",
];

/// Whether the agent only says what it does right now.
pub(super) fn is_chatter(line: &str) -> bool {
    let bytes = line.as_bytes();
    CHATTER
        .iter()
        .any(|words| bytes.get(..words.len()).is_some_and(|head| head.eq_ignore_ascii_case(words.as_bytes())))
}

/// Words of somebody who speaks of the work at hand. What an agent writes without them may be anybody's
/// text: a manual, a review of how something is built.
static PERSONAL: Set = Set::of(
    "i we i'll i've i'd i'm we'll we've we're i’ll i’ve i’m we’ll we’ve we’re let's let’s our us my me you your \
     ich wir uns unser mir je nous nosotros now here",
);

/// A cue of this weight tells without such words too.
pub(super) const SURE_MIN: u8 = 5;

/// A cue of this weight tells what a sentence is; lighter ones only together.
pub(super) const TELLING_MIN: u8 = 3;

/// What is longer, in bytes, is a description and not an order.
const ORDER_BYTES_MAX: usize = 160;

/// A heading of one's own list is as short.
const HEADING_BYTES_MAX: usize = 40;

/// Words of who tells what others said or did elsewhere, or what might be: it binds nobody.
const HEARSAY: &str = "somebody at|someone at|somebody said|someone said|i heard|i read somewhere|in my last|in my \
     previous|in my old|at my last|at my previous|at my old|in theory|one day|some day|someday|that's another story|\
     that’s another story|might be nice|could it be|i may be wrong|no idea if|i wonder|rumour|rumor";

/// Whether a sentence tells of others, or of what might be.
pub(super) fn is_hearsay(line: &str) -> bool {
    Marks::of(line).hearsay
}

/// Words of what goes wrong.
const TROUBLE: &str = "fail|error|dies|died|crash|panic|broke|breaks|broken|wrong|unexplained|happens|following|not solved|\
     trouble|exception|still there|i get|i'm getting|we get|i see|we see|stuck|doesn't work|don't know why|can't explain|\
     ends with|stops with|exits with|comes up|red again|is red";

/// Whether a line says that something goes wrong.
pub(super) fn is_trouble(line: &str) -> bool {
    static FOUND: LazyLock<AhoCorasick> = LazyLock::new(|| {
        AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(TROUBLE.split('|'))
            .expect("the words are few and short")
    });
    FOUND.is_match(line)
}

/// So do questions begin that tell: "Is it clear that `gate` must not print?"
const REMINDERS: &str = "is it clear|is that clear|are we clear|do we agree|can we agree|are we agreed|did i mention|did i say|\
     did i tell|have i told|have i said|have i mentioned|haven't i|didn't i|you know that|you remember|you do know|remember |\
     do you remember|can you remember|may i remind|are you aware|can you make sure|could you make sure|would you make sure|\
     can i ask you to|could i ask you to|may i ask you to|would you mind|would you please|could you please|\
     can you please|can we please|could we please|can we keep|could we keep|can you keep|could you keep|will you keep";

/// Whether a question tells something, or asks for it as an order does.
fn reminds(line: &str) -> bool {
    begins_with_one(line, REMINDERS)
}

/// Whether a question is a topic that what follows speaks of: "A cache in `gate`? No."
pub(super) fn is_topic(line: &str) -> bool {
    static ASKS: Set = Set::of(
        "why how what when where who which whose is are was were do does did can could should would will shall may might \
         has have had am isn't aren't doesn't don't didn't can't couldn't shouldn't wouldn't won't any anything",
    );
    let first = line.split(' ').next().unwrap_or_default().trim_end_matches(',').to_ascii_lowercase();
    line.ends_with(['?', '？']) && !ASKS.has(&first)
}

fn begins_with_one(line: &str, openings: &str) -> bool {
    let bytes = line.as_bytes();
    openings
        .split('|')
        .any(|words| bytes.get(..words.len()).is_some_and(|head| head.eq_ignore_ascii_case(words.as_bytes())))
}

/// Whether a sentence asks. "…, ok?" asks for nothing.
pub(super) fn asks(line: &str) -> bool {
    let Some(line) = line.strip_suffix(['?', '？']) else { return false };
    if reminds(line) {
        return false;
    }
    let last = line.rsplit([' ', ',']).next().unwrap_or_default().to_ascii_lowercase();
    !matches!(
        last.as_str(),
        "ok" | "okay" | "right" | "please" | "yes" | "no" | "alright" | "understood" | "deal"
    )
}

/// What the small words of a sentence say, found in one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    hearsay: bool,
    unsure: bool,
    against: bool,
    /// It gives its own reason.
    reason: bool,
}

impl Marks {
    fn of(line: &str) -> Marks {
        static LISTS: [&str; 4] = [HEARSAY, UNSURE, AGAINST, REASONS];
        static FOUND: LazyLock<(AhoCorasick, Vec<usize>)> = LazyLock::new(|| {
            let words = || {
                LISTS
                    .iter()
                    .enumerate()
                    .flat_map(|(list, words)| words.split('|').map(move |word| (list, word)))
            };
            let automaton = AhoCorasick::builder()
                .ascii_case_insensitive(true)
                .kind(Some(AhoCorasickKind::DFA))
                .build(words().map(|(_, word)| word))
                .expect("the words are few and short");
            (automaton, words().map(|(list, _)| list).collect())
        });
        let (automaton, lists) = &*FOUND;
        let mut marks = Marks::default();
        for found in automaton.find_overlapping_iter(line) {
            match lists[found.pattern().as_usize()] {
                0 => marks.hearsay = true,
                1 => marks.unsure = true,
                2 => marks.against = true,
                _ => marks.reason |= found.start() >= REASON_FROM_BYTES && has_words(&line[found.end()..]),
            }
        }
        marks
    }
}

fn has_words(rest: &str) -> bool {
    rest.split(' ').nth(REASON_WORDS_MIN - 1).is_some()
}

/// The weight of the heaviest cue of a class.
pub(super) fn weight(hits: &[Hit], class: Class) -> u8 {
    hits.iter().filter(|hit| hit.class == class).map(|hit| hit.weight).max().unwrap_or(0)
}

/// What a sentence is, and how sure that is; `None` where it is talk. `values` are those that it tells.
pub(super) fn judge(line: &str, hits: &[Hit], side: Side, values: &[Value]) -> Option<(Kind, u8)> {
    let weight = |class: Class| weight(hits, class);
    let (rule, decided) = match side {
        Side::Person => (weight(Class::Rule).max(weight(Class::Revoked)), weight(Class::Decision)),
        // What the agent says must be so, it found or decided.
        Side::Agent => (0, weight(Class::Decision).max(weight(Class::Rule).saturating_sub(1))),
    };
    let value = if values.is_empty() { 0 } else { weight(Class::Value).max(2) };
    let error = if line.contains(": ") || line.contains('`') { weight(Class::Error) } else { 0 };
    // The last of those that weigh the most.
    let (kind, found) = [
        (Kind::Value, value),
        (Kind::Error, error),
        (Kind::Decision, decided),
        (Kind::Pending, weight(Class::Pending)),
        (Kind::Rejected, weight(Class::Rejected)),
        (Kind::Rule, rule),
    ]
    .into_iter()
    .max_by_key(|(_, weight)| *weight)?;
    let is_specific = line.contains('`')
        || line.split(' ').any(|word| values::is_value(word.trim_end_matches(['.', ',', ':'])));
    // A value is told by itself; the rest needs a word that is more than common.
    let is_enough =
        found >= TELLING_MIN || found == 2 && (kind == Kind::Value || is_specific && !values.is_empty());
    let is_order = kind == Kind::Rule && found == 2 && line.len() <= ORDER_BYTES_MAX;
    // Who gives the reason says what will be asked for.
    let is_reasoned = matches!(kind, Kind::Decision | Kind::Rejected) && gives_reason(line);
    let strength = (found + u8::from(is_reasoned) + u8::from(is_specific) + u8::from(side == Side::Person))
        .saturating_sub(doubt(line, side, kind, found));
    ((is_enough || is_order) && strength >= 2).then_some((kind, strength.min(7)))
}

/// Words of who is not sure, or goes on looking.
const UNSURE: &str =
    "might|maybe|perhaps|probably|may be|seems|suspicious|not sure|could be|i guess|i think|whether|wonder";

/// Words and marks by which a reason is given, or what something is.
const REASONS: &str = "because|since|so that|given that|due to|otherwise|which|the reason|on the grounds|explanation|considering|owing to|hence|therefore|, as |: |; | – | — | (|, the |, it |, and |, so |, but ";

/// A reason has so many words at least, and something stands before it.
const REASON_WORDS_MIN: usize = 4;
const REASON_FROM_BYTES: usize = 12;

/// So does a person begin who wants something done now, or to know something: it holds until it is done.
const ERRANDS: &str = "add |fix |refactor |upgrade |implement |investigate |debug |write the |write a |find out |find the |look into |\
     look at |let's look |let’s look |let's see |explain |show me |tell me |run the |run it |run everything |try again|take a look |\
     there's a |there’s a |there is a |users |i need a |i'd like to know|could you look|can you look|can you find|can you make |\
     can you explain|can you show|could you show|could you explain|thanks|sorry";

/// So do questions begin that need no mark at their end, and words that put somebody at ease.
const IDLE: &str = "why do|why is|why are|what if |how come |is `|are `|does `|do we |is it |is there |what does |what is |how does |\
     don't worry|don’t worry|no worries|no hurry|take your time|in my last|as always";

/// Words that make an errand a rule.
const LASTING: &str = " always| never|must |must not|every |whenever|from now on|in future|in the future|don't |do not |not | no |only|nothing|nobody|without|any time";

/// How much a sentence of the person's asks for something of the moment: 0 not at all, 1 work, 2 nothing that stays.
pub(super) fn errand(line: &str) -> u8 {
    let mut rest = line.trim_start();
    for _ in 0..OPENINGS_MAX {
        let first = rest.split(' ').next().unwrap_or_default();
        let word = first.trim_end_matches([',', '.', '!', ':', '-', '…']).to_ascii_lowercase();
        let opens = matches!(
            word.as_str(),
            "ok" | "okay"
                | "so"
                | "and"
                | "now"
                | "then"
                | "also"
                | "please"
                | "great"
                | "good"
                | "nice"
                | "hi"
                | "hey"
                | "btw"
                | "perfect"
                | "cool"
                | "alright"
                | "well"
                | "oh"
                | "go"
                | "on"
        );
        if !opens || first.len() == rest.len() {
            break;
        }
        rest = rest[first.len()..].trim_start();
    }
    let begins = |words: &str| {
        rest.as_bytes().get(..words.len()).is_some_and(|head| head.eq_ignore_ascii_case(words.as_bytes()))
    };
    // What runs on says more than it begins with.
    if line.len() > ORDER_BYTES_MAX || reminds(rest) {
        0
    } else if IDLE.split('|').any(begins) {
        2
    } else if ERRANDS.split('|').any(begins) && !LASTING.split('|').any(|words| line.contains(words)) {
        1
    } else {
        0
    }
}

/// Words before what a sentence says: "ok so please".
const OPENINGS_MAX: usize = 4;

/// Whether the agent says what it will do when something else is through.
pub(super) fn is_put_off(line: &str) -> bool {
    let begins = |words: &str| {
        line.as_bytes().get(..words.len()).is_some_and(|head| head.eq_ignore_ascii_case(words.as_bytes()))
    };
    let will = [
        "i'll ",
        "i’ll ",
        "i will ",
        "i'd ",
        "we'll ",
        "i can ",
        "next i'd ",
        "next i would ",
        "then i'd ",
        "then i would ",
        "next i'll ",
        "next, i'd ",
        "next, i would ",
        "i would ",
    ]
    .iter()
    .any(|words| begins(words));
    // "Once the tests run I'll port it."
    let waits = ["once ", "after ", "as soon as ", "when "].iter().any(|words| begins(words))
        && [" i'll ", " i’ll ", " i will ", " i'm going to ", " i'd ", " we'll ", " we will "]
            .iter()
            .any(|words| line.to_ascii_lowercase().contains(words));
    waits
        || will
            && [
                " once ",
                " as soon as ",
                " later",
                " tomorrow",
                " afterwards",
                " after the ",
                " when the ",
                " in a second ",
            ]
            .iter()
            .any(|words| line.contains(words))
}

/// Whether somebody is not sure of what they say.
pub(super) fn is_unsure(line: &str) -> bool {
    Marks::of(line).unsure
}

/// Whether a sentence gives its own reason.
pub(super) fn gives_reason(line: &str) -> bool {
    Marks::of(line).reason
}

/// So much is told of a name that is a path, or has a word for what it names.
const NAMED: u8 = 2;

/// So much is told of a name that is an id, with a word for what it names.
const DESCRIBED: u8 = 3;

/// Words of who speaks against something, or of what went wrong with it.
const AGAINST: &str = "not |n't |n’t | no |never|without|instead|rather than|fail|too |worse|problem|lost|lose|break|broke|\
     mistake|given up|gave up|abandon|discard|refuse|negative|closed|ended the same|impossible|unusable|over and done";

/// How sure it is that a sentence matters that names something and has no cue: from 0 to 7. `told` is what it tells
/// of what it names; another sentence may be told with it.
pub(super) fn said(line: &str, told: u8, side: Side, is_joined: bool) -> u8 {
    let marks = Marks::of(line);
    // "I'll use the account svc-a" tells what something is all the same.
    let chatter = u8::from(is_chatter(line)) * if told >= DESCRIBED { 1 } else { 3 };
    // A sentence that is told with it gives its reason.
    let reason = u8::from(marks.reason || is_joined);
    let strength = 2 + told + u8::from(side == Side::Person) + 2 * reason + u8::from(marks.against) * reason;
    // "I think you want src/a.rs" is the person's way to say so.
    let unsure = u8::from(marks.unsure && (side == Side::Agent || told < NAMED)) * (2 - reason);
    let doubt = u8::from(asks(line)) * 3 + chatter + unsure;
    strength.saturating_sub(doubt)
}

/// What speaks against a sentence.
fn doubt(line: &str, side: Side, kind: Kind, found: u8) -> u8 {
    let is_anybodys = side == Side::Agent
        && found < SURE_MIN
        && kind != Kind::Value
        && !(line.ends_with(':') && line.len() <= HEADING_BYTES_MAX)
        && line.is_ascii()
        && !line.split([' ', ',', '.', ':']).any(|word| PERSONAL.has(&word.to_ascii_lowercase()));
    let begins = |words: &str| {
        line.as_bytes().get(..words.len()).is_some_and(|head| head.eq_ignore_ascii_case(words.as_bytes()))
    };
    let asks = asks(line);
    let is_polite = begins("can you") || begins("could you") || line.contains("please");
    // "I'll use port 80" gives a value all the same.
    let is_chatter = side == Side::Agent && kind != Kind::Value && is_chatter(line);
    // Of what has a name here somebody speaks who works here.
    let names = u8::from(line.contains(['`', '_']));
    u8::from(is_anybodys) * (2 - names)
        + u8::from(asks && !is_polite) * 2
        + u8::from(is_chatter) * 2
        + u8::from(found <= TELLING_MIN && kind != Kind::Value && Marks::of(line).unsure) * 2
        + u8::from(line.len() > FACT_BYTES_MAX)
}
