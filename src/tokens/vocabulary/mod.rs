//! The embedded vocabulary: o200k, used by OpenAI's models. It is close enough to all others that a ratio
//! makes up for the difference.
//!
//! `o200k.bin` was made by `convert.py` from the file `o200k_base.tiktoken` of the crate tiktoken-rs (MIT),
//! which is the file that OpenAI publishes for its library tiktoken (MIT). The script documents the format.

use std::fmt;

use miniz_oxide::inflate::decompress_to_vec_with_limit;
use thiserror::Error;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::models::bpe::{BpeConfig, Merges, PipelineBPE, Vocab};
use tokenizers::pipeline::{
    EncodeOptions, PipelineModel, PipelinePostProcessor, PipelinePreTokenizer, PipelineTokenizer,
};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

use super::estimate::estimate;

const PACKED: &[u8] = include_bytes!("o200k.bin");

/// Limit for the unpacked size in bytes, against a damaged file.
const UNPACKED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The pre-tokenizer pattern, as defined by OpenAI's library for this vocabulary.
const PATTERN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The left rank of a single-byte token is this plus the byte.
const SINGLE_BYTE: usize = 0xff_ff00;

/// Number of words cached with their tokens. Four times as many are hardly faster and take 3 MB more.
const CACHED_WORDS: usize = 16_384;

/// Largest text in bytes that is counted completely. The slowest text (base64) takes about 150 ms per
/// megabyte.
const WHOLE_BYTES_MAX: usize = 64 * 1024;

/// Of a longer text, this many pieces of this many bytes are counted, and the rest is estimated in
/// proportion.
const PIECES: usize = 8;
const PIECE_BYTES: usize = WHOLE_BYTES_MAX / PIECES;

/// Why the vocabulary is not available.
#[derive(Debug, Error)]
pub enum VocabularyError {
    #[error("the embedded vocabulary is damaged: {0}")]
    Damaged(String),
    #[error("the embedded vocabulary is not taken: {0}")]
    Refused(String),
}

/// Counts the tokens of text exactly. Takes about 55 MB of memory.
pub struct Vocabulary {
    tokenizer: PipelineTokenizer,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vocabulary(o200k)")
    }
}

impl Vocabulary {
    /// Unpacks the vocabulary, which takes most of a second of CPU time.
    pub fn load() -> Result<Vocabulary, VocabularyError> {
        let (vocab, merges) = unpack(PACKED)?;
        let refused = |error: tokenizers::Error| VocabularyError::Refused(error.to_string());
        let config = BpeConfig {
            vocab,
            merges,
            byte_level: true,
            ignore_merges: true,
            cache_capacity: CACHED_WORDS,
            ..BpeConfig::default()
        };
        let model = PipelineModel::BPE(PipelineBPE::from_config(config).map_err(refused)?);
        // The crate has native code for this pattern, so no regex engine is linked.
        let split = SplitPattern::Regex(PATTERN.to_owned());
        let split = Split::native(split, SplitDelimiterBehavior::Isolated, false).map_err(refused)?;
        if split.grammar().is_none() {
            return Err(VocabularyError::Refused("its pattern is not one that is built in".to_owned()));
        }
        let tokenizer = PipelineTokenizer::from_parts(
            AddedVocabulary::new(),
            Vec::new(),
            PipelinePreTokenizer::Split(split),
            model,
            PipelinePostProcessor::default(),
            None,
            Default::default(),
            None,
            None,
        );
        Ok(Vocabulary { tokenizer })
    }

    /// Counts the tokens of a text. For a long text, the count is projected from pieces, so that no text
    /// takes long.
    pub fn count(&self, text: &str) -> u64 {
        if text.len() <= WHOLE_BYTES_MAX {
            return self.count_whole(text);
        }
        let (mut counted, mut estimated) = (0, 0);
        for piece in 0..PIECES {
            let from = text.floor_char_boundary((text.len() - PIECE_BYTES) / (PIECES - 1) * piece);
            let to = text.floor_char_boundary(from + PIECE_BYTES);
            counted += self.count_whole(&text[from..to]);
            estimated += estimate(&text[from..to]);
        }
        let rest = estimate(text) as f64 / estimated.max(1) as f64;
        (counted as f64 * rest).ceil() as u64
    }

    fn count_whole(&self, text: &str) -> u64 {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        match self.tokenizer.encode_into(text, &EncodeOptions::no_specials(), &mut tokens) {
            Ok(()) => tokens.len() as u64,
            // Every byte is a token, so no text can be rejected.
            Err(_) => estimate(text),
        }
    }
}

/// The tokens by rank, and the pairs that they are merged from, in the byte-level alphabet.
fn unpack(packed: &[u8]) -> Result<(Vocab, Merges), VocabularyError> {
    let planes = decompress_to_vec_with_limit(packed, UNPACKED_BYTES_MAX)
        .map_err(|error| VocabularyError::Damaged(error.to_string()))?;
    let count = planes.len() / 6;
    let number = |side: usize, at: usize| {
        (0..3).map(|byte| usize::from(planes[(side * 3 + byte) * count + at]) << (8 * byte)).sum::<usize>()
    };
    let alphabet = alphabet();
    let mut tokens: Vec<String> = Vec::with_capacity(count);
    let mut merges = Merges::with_capacity(count);
    for rank in 0..count {
        let (left, right) = (number(0, rank), number(1, rank));
        let token = match (left.checked_sub(SINGLE_BYTE), tokens.get(left), tokens.get(right)) {
            (Some(byte), _, _) => alphabet[byte].to_string(),
            (None, Some(left), Some(right)) => {
                merges.push((left.clone(), right.clone()));
                format!("{left}{right}")
            }
            (None, _, _) => {
                return Err(VocabularyError::Damaged(format!("token {rank} is made of later ones")));
            }
        };
        tokens.push(token);
    }
    let vocab = tokens.into_iter().zip(0..).collect();
    Ok((vocab, merges))
}

/// The character that represents each byte: the byte itself if printable, otherwise the next character after
/// Latin-1. All byte-level vocabularies since GPT-2 use this alphabet.
fn alphabet() -> [char; 256] {
    let mut behind = ('\u{100}'..).take(256);
    std::array::from_fn(|byte| match byte as u8 {
        printable @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(printable),
        _ => behind.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_an_error() {
        for (packed, said) in [
            (&[][..], "damaged"),
            (&PACKED[..PACKED.len() / 2], "damaged"),
            // Stored without compression: a token whose parts are itself.
            (&[1, 6, 0, 0xf9, 0xff, 0, 0, 0, 0, 0, 0], "token 0 is made of later ones"),
        ] {
            let error = unpack(packed).map(|(tokens, _)| tokens.len()).expect_err("no vocabulary");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn the_vocabulary_has_every_byte_and_every_merge() {
        let (vocab, merges) = unpack(PACKED).expect("the embedded file");
        assert_eq!((vocab.len(), merges.len()), (199_998, 199_998 - 256));
        assert!(alphabet().iter().all(|byte| vocab.contains_key(&byte.to_string())));
    }
}
