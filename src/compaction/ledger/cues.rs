//! The words by which a sentence is known as a rule, a decision, a task. Data, and the automaton over it.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// What a cue points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// How the work is to be done.
    Rule,
    /// A rule is taken back.
    Revoked,
    Pending,
    Done,
    Decision,
    Rejected,
    /// A value may be told here.
    Value,
    /// So it may where one stands here that is known by its looks.
    Link,
    Error,
}

/// Words with their class and weight: from 4 on they are sure alone, below 2 only together with others.
/// Where a word ends in a letter it stands as a word; case does not matter.
const SPOKEN: &[(Class, u8, &str)] = &[
    (
        Class::Rule,
        5,
        "never|must not|mustn't|under no circumstances|off limits|off-limits|hands off|from now on|\
         not allowed|is forbidden|are forbidden|do not ever|don't ever|at all costs|hard requirement|\
         non-negotiable|house rule|i insist|no matter what|strictly",
    ),
    (
        Class::Rule,
        4,
        "don't|do not|dont|always|must|make sure|my one wish|my wish is|nowhere else|nobody else|no one else|are to be|is to be|avoid|prefer|i'd rather|i would rather|stick to|\
         stick with|only use|use only|keep in mind|remember that|please remember|no need to|\
         leave alone|stay away from|requirement|constraint|has to|have to|shall|at most|at least|\
         no more than|no longer than|no later than|deadline|should never|should always|shouldn't|\
         should not|may not|cannot use|can't use|not okay to|not ok to|i want you to|i don't want|\
         i do not want|i'd like you to|be careful|ensure|without|convention|by the end of|in stone|\
         untouched|unchanged|backwards compatible|backward compatible|backwards compatibility|\
         backward compatibility|respond in|answer in|reply in|write in|refrain from|\
         nothing else than|nothing but|except for|leave it as|policy|refuse to|limit yourself|\
         not acceptable|mandatory|we require|is required|are required|has been frozen|is frozen|\
         code freeze|compliance|important:|note:|rules:|constraints:|requirements:|preferences:|\
         ground rules",
    ),
    (
        Class::Rule,
        3,
        "only|keep|should|leave|need to|needs to|i want|i'd like|i like|i hate|i prefer|rather than|\
         instead of|ask me before|ask before|ask first|check with me|before you|every time|whenever|\
         each commit|commit messages|preferably|by default|no new|not more than|target|supports|\
         support for|compatible with|due on|due by|by friday|by monday|by tuesday|by wednesday|\
         by thursday|by tomorrow|until|limit",
    ),
    (Class::Rule, 2, "use|please|no|not|everything|any|style|indent|prefix|suffix"),
    (
        Class::Rule,
        4,
        "nicht|niemals|immer|nur|muss|müssen|keine|keinen|kein|auf keinen fall|auf deutsch|bevorzuge|\
         vermeide|darf nicht|bleibt so|ohne|jamais|toujours|uniquement|seulement|il faut|ne pas|\
         n'utilise pas|en français|sans|évite|dois|doit|interdit|nunca|siempre|solamente|debe|deben|\
         no uses|no toques|en español|evita|prohibido|sempre|apenas|não use|não|mai usare|никогда|\
         всегда|только|нельзя|обязательно|не надо|не трогай|не используй|不要|必须|只能|始终|禁止|务必|不得|请用|\
         しないで|必ず|だけ|使わない|常に|하지 마|항상|반드시",
    ),
    (
        Class::Revoked,
        4,
        "forget that|forget what i said|forget about|forget the|scratch that|never mind|nevermind|\
         ignore what i said|disregard|i take that back|i take back|changed my mind|no longer applies|\
         no longer needed|no longer necessary|no longer required|no longer matters|\
         doesn't matter anymore|does not matter any more|doesn't apply anymore|is lifted|is dropped|\
         is gone now|you may|you can now|you are free to|you're free to|feel free to|it's ok to|\
         it's okay to|it is ok to|it is okay to|it's fine to|is fine now|are fine now|\
         is fine after all|is allowed now|are allowed now|now allowed|go ahead and|drop the|\
         drop that|vergiss|du darfst jetzt|oublie|olvida",
    ),
    (
        Class::Pending,
        5,
        "don't forget to|do not forget to|remind me|still to do|still todo|left to do|remains to be|\
         remaining work|remaining:|todo:|to-do:|still open|still missing|what remains|missing is to|open:|blocked:|not urgent|no rush|do it after|do that after|when that is in|when that's in|faudra encore|stays on the list|on my list|on the list for later|for later|still outstanding|known gap|reminder to|note to self|out of scope|to the plan|to the list|\
         not done yet|not yet done|[ ]|open question|next steps:|follow-up:|yet to be|still pending|\
         have yet to|has yet to|noch offen|noch zu tun|muss noch|fehlt noch|il reste|reste à|\
         queda por|falta por|还需要|待办|осталось",
    ),
    (
        Class::Pending,
        4,
        "todo|to do|fixme|still need|still needs|still have to|still has to|not yet|unfinished|\
         remaining|pending|follow-up|follow up|followup|afterwards|later on|come back to|revisit|\
         next step|next up|backlog|postponed|deferred|defer|put off|parked|park|once that is|\
         once this is|when you're done|when you are done|before we ship|before the release|\
         before merging|before we merge|before release|before shipping|outstanding|hasn't been|\
         haven't been|haven't yet|not implemented|is missing|are missing|needs to be|need to be|\
         should also|also need|we need to|someone has to|at the end|left for later|separate pr|\
         another pr|tomorrow|as a last step|waiting for|waiting on|blocked on|blocked by|to be done|\
         will have to|remember to|leftover|what's left|what is left|left over|to finish",
    ),
    (
        Class::Pending,
        3,
        "once the tests|once ci|next week|next sprint|next session|next release|after the release|schedule it|\
         has to be done separately|follows once|later this week",
    ),
    (
        Class::Done,
        3,
        "done|finished|completed|implemented|fixed|added|merged|shipped|resolved|[x]|✅|✔|removed|\
         updated|written|landed|complete|documented|bumped|wired|translated|created|moved|renamed|\
         refactored|replaced|committed|pushed|covered|extracted|deleted|migrated|hooked up|works now|\
         cleaned up|is in place|taken care of|erledigt",
    ),
    (
        Class::Decision,
        5,
        "decided|we'll go with|we will go with|going with|i'll go with|let's go with|settled on|\
         settle on|we'll use|we will use|let's use|the decision|decision:|opted for|opt for|opted to|\
         agreed to|agreed on|we agreed|verdict|deciding point|deciding factor|deciding argument|green light|locked in|went with|sign off on|our pick|my pick|chose|chosen|our choice|we picked|i picked|in favor of|\
         in favour of|final answer|made the call|root cause|culprit|wir nehmen|entschieden|on prend|\
         nous avons décidé|vamos a usar|decidimos|决定|采用|решили",
    ),
    (
        Class::Decision,
        4,
        "go with|we're using|we are using|sticking with|stick with|the plan is|trade-off|tradeoff|\
         approach|i went with|we went with|i'm using|i'll use|i chose|choose|pick|picked|because|the reason|\
         reasoning|rationale|conclusion|approved|signed off|design|turns out|turned out|the bug was|\
         the problem was|the issue was|the fix is|the fix was|caused by|due to|which is why|\
         that's why|so that|we'll keep|we will keep|i kept|i used|let's keep|let's do|will live in|\
         lives in|switch to|switched to|switching to|moving to|moved to|migrate to|migrated to|adopt|\
         adopted|standardise on|standardize on|on purpose|deliberately|intentionally|instead of|\
         rather than|we keep|stays|will be|weil|damit",
    ),
    (
        Class::Rejected,
        5,
        "given up on|would be a mistake|hard no|veto|shot down|won't find|don't attempt|line of work|doesn't work|does not work|didn't work|did not work|won't work|will not work|not an option|\
         rejected|reject|ruled out|rules out|rule out|dead end|gave up on|giving up on|\
         decided against|off the table|no go|no-go|not viable|isn't viable|vetoed|bad idea|backed out|\
         abandoned|not feasible|infeasible|not worth|was a mistake|rolled back|reverted|discarded|\
         scrapped|threw out|tried and failed|not going to work|isn't going to work|non-starter|\
         nonstarter|out of the question|advise against|advised against|against using|\
         funktioniert nicht|geht nicht|ne marche pas|no funciona|行不通|не работает|verworfen",
    ),
    (
        Class::Rejected,
        4,
        "tried|attempted|i revert|revert|too slow|too fragile|too brittle|too expensive|too complex|\
         too heavy|too risky|breaks|broke|deadlock|deadlocks|deadlocked|leaks|leaked|fails because|\
         failed because|fell over|couldn't|could not|no luck|to no avail|unsuitable|unusable|\
         not suitable|isn't suitable|wasn't enough|was not enough|didn't help|did not help|\
         doesn't help|made it worse|made things worse|no good|can't use|cannot use|considered|\
         dropped the|dropped|dismissed|ditched|turned down|overkill|flaky|incompatible|would be wrong|negative result|off the list|not do that again|doesn't hold up|didn't hold up|\
         did not hold up|\
         doesn't support|does not support|didn't support|race condition|corrupts|corrupted|backfired|\
         walked away from|instead of|rather than|not use|avoid|failed approach|probiert",
    ),
    (
        Class::Value,
        3,
        "is now|are now|now is|changed to|changed from|set to|renamed|bumped|bump|raised|raise|\
         lowered|lower|increased|increase|reduced|reduce|moved from|upgraded|upgrade|downgraded|\
         downgrade|no longer|used to be|previously|formerly|instead|correction|update:|actually|\
         switched|jetzt|désormais|ahora|现在|теперь|went from|went up|went down|dropped to|changed|\
         change|replaced|replace|from now on",
    ),
    (
        Class::Value,
        1,
        "port|version|branch|timeout|limit|ticket|issue|release|region|ttl|host|hostname|url|\
         endpoint|bucket|database|schema|table|queue|topic|threshold|interval|retries|retry|attempts|\
         workers|threads|concurrency|batch|size|budget|deadline|tag|commit|revision|model|python|\
         node|postgres|rust|java|ruby|namespace|cluster|image|id|key|flag|default|maximum|minimum|\
         max|min|cap|quota|rate|seed|epoch|account|project|owner|codename|name|called|channel|path|\
         directory|folder|msrv|edition|count|level|factor|ratio|delay|window|length|depth|address|\
         environment|staging|lives at|points to",
    ),
    (Class::Link, 1, "set|is|are|=|: 0|: 1|: 2|: 3|: 4|: 5|: 6|: 7|: 8|: 9|: `"),
    (
        Class::Error,
        4,
        "error:|error[|fatal:|panicked at|exception:|assertionerror|econnrefused|traceback|\
         segmentation fault|segfault|stack overflow|undefined reference|no such file or directory|\
         connection refused|out of memory|error `|error \"|exit code|exit status|sigsegv|enoent|\
         eaddrinuse|permission denied|timed out after",
    ),
];

/// From this weight on the word of an error is sure in any run of a command, below only in one that failed.
pub(super) const SURE_MIN: u8 = 4;

/// Words by which a line of an output is known as an error.
const PRINTED: &[(u8, &str)] = &[
    (
        5,
        "error:|error[|fatal:|panicked at|exception:|--- fail|npm err!|segmentation fault|\
         undefined reference|core dumped|econnrefused|eaddrinuse|enoent|command not found|\
         no such file or directory|panic:|overflowed its stack|x509:|[error]|[fatal]|critical:|uncaught|unhandled|fatal error|\
         detected ***|*** [|sanitizer:|error at ",
    ),
    (
        4,
        " error |failed|not ok |✗|✕|✘|●|level=error|level=fatal|abort|permission denied|\
         connection refused|out of memory|stack overflow|deadlock|exception in|caused by:",
    ),
    (
        2,
        "error|failure|cannot|can't|could not|couldn't|not found|denied|refused|timed out|timeout|\
         unexpected|invalid|undefined|exception|mismatch|unresolved|killed|conflict|missing|\
         unable to|expected|no matching|unknown|does not exist|is not",
    ),
];

/// A hit of a cue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub start: usize,
    pub end: usize,
    pub class: Class,
    pub weight: u8,
}

struct Table {
    automaton: AhoCorasick,
    cues: Vec<(Class, u8, bool, bool)>,
}

impl Table {
    fn of<'a>(rows: impl Iterator<Item = (Class, u8, &'a str)>) -> Table {
        let mut words = Vec::new();
        let mut cues = Vec::new();
        let is_letter = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphabetic());
        for (class, weight, word) in rows {
            let mut add = |word: String| {
                let bytes = word.as_bytes();
                // An error's name is one word with what stands before it: `ValueError:`.
                let opens = class != Class::Error && is_letter(bytes.first().copied());
                cues.push((class, weight, opens, is_letter(bytes.last().copied())));
                words.push(word);
            };
            add(word.to_owned());
            if word.contains('\'') {
                add(word.replace('\'', "’"));
            }
        }
        // One table of next states: by far the fastest, and these few words make a small one.
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::DFA))
            .build(&words)
            .expect("the cues are few and short");
        Table { automaton, cues }
    }

    fn hits<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Hit> + 'a {
        let is_word = |at: Option<&u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let bytes = text.as_bytes();
        self.automaton.find_overlapping_iter(text).filter_map(move |found| {
            let (class, weight, opens, closes) = self.cues[found.pattern().as_usize()];
            let inside = (opens && found.start() > 0 && is_word(bytes.get(found.start() - 1)))
                || (closes && is_word(bytes.get(found.end())));
            (!inside).then_some(Hit { start: found.start(), end: found.end(), class, weight })
        })
    }
}

/// The cues of a text that somebody said, by where they end.
pub(super) fn spoken(text: &str) -> impl Iterator<Item = Hit> + '_ {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        Table::of(
            SPOKEN
                .iter()
                .flat_map(|(class, weight, words)| words.split('|').map(|word| (*class, *weight, word))),
        )
    });
    TABLE.hits(text)
}

/// The cues of errors in what a program printed, by where they end: only the sure ones, or all.
pub(super) fn printed(text: &str, all: bool) -> impl Iterator<Item = Hit> + '_ {
    static SURE: LazyLock<Table> = LazyLock::new(|| Table::of(errors(SURE_MIN)));
    static ALL: LazyLock<Table> = LazyLock::new(|| Table::of(errors(0)));
    if all { ALL.hits(text) } else { SURE.hits(text) }
}

fn errors(weight_min: u8) -> impl Iterator<Item = (Class, u8, &'static str)> {
    let rows = PRINTED.iter().filter(move |(weight, _)| *weight >= weight_min);
    rows.flat_map(|(weight, words)| words.split('|').map(|word| (Class::Error, *weight, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cues_stand_as_words() {
        let classes =
            |text: &str| spoken(text).filter(|hit| hit.weight > 3).map(|hit| hit.class).collect::<Vec<_>>();
        assert_eq!(classes("the mustard is mustn"), []);
        assert_eq!(classes("You MUST."), [Class::Rule]);
        assert_eq!(classes("don’t"), [Class::Rule]);
        assert_eq!(classes("nevermore, pickle"), []);
        assert_eq!(classes("请不要改"), [Class::Rule]);
    }
}
