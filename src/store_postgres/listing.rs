//! Listings and the first step of searches, by page.

use std::path::PathBuf;

use tokio_postgres::types::Type;

use super::connections::Params;
use super::{PAGE, Postgres};
use epitome_store::{Listing, SessionQuery, StoreError};
use epitome_thread::SessionId;

/// Pieces of words that are looked for with one statement; the longest ones.
const PIECES: usize = 3;

/// Shorter pieces occur in most lines, and the index does not have them.
const PIECE_LENGTH_MIN: usize = 3;

/// Digits of an id.
const ID_DIGITS: usize = 20;

/// Conditions of a query, as parameters of one statement; an absent one is null.
struct ListingParams {
    cwd: Option<Vec<String>>,
    has_prompt: bool,
    archived: Option<bool>,
    ids: Option<(String, String)>,
    patterns: Vec<String>,
}

impl ListingParams {
    /// `None` if no session fits.
    fn of(query: &SessionQuery) -> Option<ListingParams> {
        let spellings = |cwd: &PathBuf| {
            let mut spelled = vec![cwd.to_string_lossy().into_owned()];
            spelled.extend(cwd.canonicalize().ok().map(|real| real.to_string_lossy().into_owned()));
            spelled
        };
        Some(ListingParams {
            cwd: query.cwd.as_ref().map(spellings),
            has_prompt: query.has_prompt,
            archived: query.archived,
            ids: ids(&query.prefix)?,
            patterns: patterns(&query.words),
        })
    }

    fn values(&self, after: &(i64, String), limit: usize) -> Params {
        let (first, last) = self.ids.clone().unzip();
        let pattern = |nth: usize| self.patterns.get(nth).cloned();
        vec![
            (Box::new(self.cwd.clone()), Type::TEXT_ARRAY),
            (Box::new(self.has_prompt), Type::BOOL),
            (Box::new(self.archived), Type::BOOL),
            (Box::new(first), Type::TEXT),
            (Box::new(last), Type::TEXT),
            (Box::new(after.0), Type::INT8),
            (Box::new(after.1.clone()), Type::TEXT),
            (Box::new(pattern(0)), Type::TEXT),
            (Box::new(pattern(1)), Type::TEXT),
            (Box::new(pattern(2)), Type::TEXT),
            (Box::new(limit as i64), Type::INT8),
        ]
    }
}

/// The first and the last id that begin with `prefix`. Ids have the same length, so that all collations sort them in the
/// same way.
#[expect(clippy::option_option, reason = "no id, or no condition")]
fn ids(prefix: &str) -> Option<Option<(String, String)>> {
    if prefix.is_empty() {
        return Some(None);
    }
    let filled = |digit: &str| {
        let digits = (ID_DIGITS + "s_".len()).checked_sub(prefix.len())?;
        SessionId::parse(&format!("{prefix}{}", digit.repeat(digits))).map(|id| id.0)
    };
    Some(Some((filled("0")?, filled("f")?)))
}

/// Patterns that a line must match if one of its texts contains all words. Only letters and digits are the same in a text
/// and in its JSON, and only those of ASCII have the same upper case everywhere.
fn patterns(words: &[String]) -> Vec<String> {
    let mut pieces: Vec<&str> = words
        .iter()
        .flat_map(|word| word.split(|character: char| !character.is_alphanumeric()))
        .filter(|piece| piece.len() >= PIECE_LENGTH_MIN && piece.is_ascii())
        .collect();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
    pieces.dedup();
    pieces.truncate(PIECES);
    pieces.into_iter().map(|piece| format!("%{piece}%")).collect()
}

impl Postgres {
    /// Reads as many pages as the query asks for.
    pub(crate) fn list_pages(&self, query: &SessionQuery) -> Result<Listing, StoreError> {
        // With null for a parameter, its condition is dropped before the statement is planned.
        let sql = "select id, header, updated_at from epitome_session s \
                   where ($1::text[] is null or cwd = any($1)) and (not $2::bool or has_prompt) \
                   and ($3::bool is null or archived = $3) and ($4::text is null or id between $4 and $5) \
                   and (updated_at, id) < ($6, $7) \
                   and ($8::text is null or exists (select 1 from epitome_entry e where e.session = s.id \
                   and e.line ilike $8 and ($9::text is null or e.line ilike $9) \
                   and ($10::text is null or e.line ilike $10))) \
                   order by updated_at desc, id desc limit $11";
        let mut listing = Listing::default();
        let Some(params) = ListingParams::of(query) else { return Ok(listing) };
        let params = std::sync::Arc::new(params);
        let mut after = match &query.after {
            None => (i64::MAX, String::new()),
            Some((at, session)) => (i64::try_from(*at).unwrap_or(i64::MAX), session.0.clone()),
        };
        let mut left = query.limit.unwrap_or(usize::MAX);
        while left > 0 {
            let (shared, from, params, limit) =
                (self.0.clone(), after.clone(), params.clone(), left.min(PAGE));
            let values = move || params.values(&from, limit);
            let rows =
                self.run(async move { shared.connections.query("list sessions", sql, values).await })?;
            for row in &rows {
                let session = SessionId(row.get(0));
                match serde_json::from_str(row.get(1)) {
                    Ok(header) => listing.headers.push(header),
                    Err(error) => {
                        listing.problems.push((session.clone(), super::unreadable(&session, &error)));
                    }
                }
                after = (row.get(2), session.0);
            }
            left -= rows.len();
            if rows.len() < limit {
                break;
            }
        }
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range_of_ids() {
        assert_eq!(ids(""), Some(None));
        let (first, last) = ids("s_ab").unwrap().unwrap();
        assert_eq!((first.as_str(), last.as_str()), ("s_ab000000000000000000", "s_abffffffffffffffffff"));
        assert_eq!(ids("s_xyz"), None);
    }

    #[test]
    fn a_line_is_looked_for_by_what_json_does_not_change() {
        let words = ["src/main.rs", "\"quoted\"", "über", "a%b", "x"].map(str::to_owned);
        assert_eq!(patterns(&words), ["%quoted%", "%main%", "%src%"]);
    }
}
