//! What ends a rule or a task that was said before. Pure.

use super::fact::{Kind, Source};
use super::store::Store;
use super::words::{self, Set, Stem};

/// A share of words from which on a sentence speaks of the same, in per cent.
const SAME_PERCENT: usize = 60;

/// Words that allow what a rule forbade.
const PERMITS: &str = "you may|you can now|free to|ok to|okay to|fine to|fine now|fine after all|allowed now|go ahead|\
     feel free|du darfst";

/// Words of rules that hold something back; only those can be loosened.
const LIMITS: &str = "only|keep|leave|untouched|must|frozen|off|niemals|nur|jamais|nunca";

static REVOKING: Set = Set::of(
    "forget scratch mind ignore disregard take back changed applies needed necessary required matters matter \
     apply lifted dropped gone may free feel fine allowed ahead drop rule earlier constraint requirement thing \
     restriction never",
);

/// The person took back a rule: the one that has most in common with these words, or the newest where
/// they name nothing. Where nothing fits, nothing ends.
pub(super) fn revoke(store: &mut Store, line: &str, source: Source) {
    let lower = line.to_lowercase();
    let permits = PERMITS.split('|').any(|cue| lower.contains(cue));
    let telling: Vec<&str> = lower
        .split(|character: char| !character.is_alphanumeric())
        .filter(|word| !REVOKING.has(word))
        .collect();
    let own: Vec<Stem> =
        words::stems(&telling.join(" ")).into_iter().filter(|stem| *stem != words::not()).collect();
    let rules = store.of_mut(Kind::Rule).iter_mut();
    let rules = rules.filter(|rule| rule.over.is_none() && rule.newest() <= source.entry);
    let best = if own.is_empty() {
        rules.filter(|_| !permits).max_by_key(|rule| rule.newest())
    } else {
        let scored = rules.filter_map(|rule| {
            let (percent, shared) = words::overlap(&own, &rule.stems);
            let same = shared > 0 && percent >= SAME_PERCENT && names_all(line, &rule.text);
            (same && (!permits || limits(&rule.text, &rule.stems)))
                .then(|| ((shared, percent, rule.newest()), rule))
        });
        scored.max_by_key(|(score, _)| *score).map(|(_, rule)| rule)
    };
    if let Some(rule) = best {
        rule.over = Some(source.entry);
    }
}

/// Whether every name of code in a rule is named here too: a rule of several things does not end with one of them.
fn names_all(line: &str, rule: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    rule.split(|c: char| !is_part(c)).filter(|word| word.contains('_')).all(|name| line.contains(name))
}

fn limits(rule: &str, stems: &[Stem]) -> bool {
    let lower = rule.to_lowercase();
    stems.contains(&words::not()) || LIMITS.split('|').any(|word| lower.contains(word))
}

/// Something was said to be done: what was pending of it drops out.
pub(super) fn finish(store: &mut Store, line: &str, source: Source) {
    let stems = words::stems(line);
    store.end_tasks(source.entry, |task| {
        task.newest() < source.entry && words::is_covered(&task.stems, &stems) && names_all(line, &task.text)
    });
}
