//! Room for instructions in the window: a file that would leave none for the conversation is named instead of included.
//!
//! The decision is frozen with the system text. It is not made again for an existing frame, even after a change to a
//! smaller model: another system text would be another prefix, and would retract instructions already given.

use std::path::Path;

use super::known::is_left_out;
use crate::NoticeSeverity;
use crate::core::Core;
use crate::prompt::{self, InstructionFile};
use epitome_compaction::Budget;
use epitome_thread::ToolSpec;
use epitome_tokens::Count;

/// The minimum part of a window left for the conversation, as a divisor. Less has no room for a request, a tool
/// outcome and a summary.
const CONVERSATION_PART: u64 = 8;

/// Maximum tokens of the system text and the tools.
fn frame_max(budget: &Budget) -> u64 {
    budget.window.saturating_sub(budget.reserve + budget.window / CONVERSATION_PART)
}

/// Decides which files fit, given the tokens of each, farthest first.
///
/// The nearest files get room first, since they take precedence; a file that is too long does not exclude the
/// others.
fn with_room(files: &[u64], room: u64) -> Vec<bool> {
    let mut left = room;
    let mut fits = vec![false; files.len()];
    for (fits, tokens) in fits.iter_mut().zip(files).rev() {
        if let Some(rest) = left.checked_sub(*tokens) {
            (*fits, left) = (true, rest);
        }
    }
    fits
}

impl Core {
    /// The system text to be frozen with these tools. Notifies the user of files for which there is no room.
    pub(crate) fn system_text(
        &self,
        files: Vec<InstructionFile>,
        contexts: Vec<String>,
        tools: &[ToolSpec],
    ) -> String {
        let contexts = contexts.into_iter().chain(self.lineage.role.clone());
        let contexts: String = contexts.map(|context| format!("\n\n{context}")).collect();
        let client = self.thread.client_instructions();
        let text = |files: &[String]| prompt::system_text(&self.workspace, files, &contexts, client);
        let (ruler, budget) = (self.ruler(), self.budget(None));
        let at_most = |counted| ruler.at_most(Count { reported: 0, counted });
        let whole: Vec<String> = files.iter().map(|file| prompt::block(&file.path, &file.text)).collect();
        let system = text(&whole);
        if files.is_empty() || at_most(ruler.frame(&system, tools)) <= frame_max(&budget) {
            return system;
        }
        let named: Vec<String> = files.iter().map(prompt::left_out).collect();
        let room = frame_max(&budget).saturating_sub(at_most(ruler.frame(&text(&named), tools)));
        let tokens: Vec<u64> = whole.iter().map(|block| ruler.text(block)).collect();
        let fits = with_room(&tokens.iter().map(|tokens| at_most(*tokens)).collect::<Vec<_>>(), room);
        let blocks = whole.into_iter().zip(named).zip(&fits);
        let blocks: Vec<String> =
            blocks.map(|((whole, named), fits)| if *fits { whole } else { named }).collect();
        let left_out = files.iter().zip(tokens).zip(&fits).filter(|(_, fits)| !**fits);
        let left_out: Vec<(&InstructionFile, u64)> = left_out.map(|(file, _)| file).collect();
        self.notify(NoticeSeverity::Warning, notice(&left_out, budget.window));
        text(&blocks)
    }

    /// Whether there is room for this message about an instruction file: a file that was left out for its size is
    /// included once it fits, because it is shorter or the window is larger.
    pub(super) fn has_room_for(&self, path: &Path, words: &str) -> bool {
        if !is_left_out(&self.thread, path) {
            return true;
        }
        let (ruler, budget) = (self.ruler(), self.budget(None));
        let counted = budget.frame + ruler.text(words);
        ruler.at_most(Count { reported: 0, counted }) <= frame_max(&budget)
    }
}

fn notice(left_out: &[(&InstructionFile, u64)], window: u64) -> String {
    let files = left_out.iter().map(|(file, tokens)| {
        format!("{} ({} bytes, about {tokens} tokens)", file.path.display(), file.text.len())
    });
    format!(
        "Too long for a context window of {window} tokens, so the agent only gets their paths and reads them \
         if needed: {}. Make them shorter, or choose a model with a larger window: the agent gets them as \
         soon as they fit.",
        files.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_files_are_sent_as_far_as_they_fit() {
        let cases: [(&[u64], u64, &[bool]); 7] = [
            (&[], 0, &[]),
            (&[10, 20, 30], 60, &[true, true, true]),
            (&[10, 20, 30], 59, &[false, true, true]),
            (&[10, 20, 30], 45, &[true, false, true]),
            (&[10, 20, 30], 29, &[false, true, false]),
            (&[10, 900, 30], 100, &[true, false, true]),
            (&[10, 20, 30], 5, &[false, false, false]),
        ];
        for (files, room, fits) in cases {
            assert_eq!(with_room(files, room), fits, "{files:?} in {room}");
        }
    }

    #[test]
    fn a_small_window_keeps_an_eighth_for_the_conversation() {
        for (window, reserve, most) in [(8_000, 2_000, 5_400), (200_000, 8_000, 167_000), (10, 10, 7)] {
            let budget = Budget::new(&Default::default(), window, reserve, 0);
            assert_eq!(frame_max(&budget), most, "{window}");
        }
    }
}
