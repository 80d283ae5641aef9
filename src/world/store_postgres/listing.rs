//! Listings and the first step of searches, by page.

use std::collections::BTreeSet;

use super::connections::param;
use super::{PAGE, Postgres};
use epitome_store::{Listing, SessionQuery, StoreError};
use epitome_thread::SessionId;

/// Pieces of words that are looked for with one statement; the longest ones.
const PIECES: usize = 3;

/// Shorter pieces occur in most lines, and the index does not have them.
const PIECE_LENGTH_MIN: usize = 3;

/// Digits of an id.
const ID_DIGITS: usize = 20;

/// `from`: the sessions to choose from, `more`: a further condition, which begins with a space. `$1` is one spelling of a directory, and null means all.
fn select(from: &str, more: &str) -> String {
    format!(
        "select id, header, updated_at from {from} s where ($1::text is null or cwd = $1) \
         and (not $2::bool or has_prompt) and ($3::bool is null or archived = $3) \
         and (updated_at, id) < ($4, $5){more} order by updated_at desc, id desc limit $6"
    )
}

/// The statement for a query, and the parameters that are its own. `None` if no session fits.
fn statement(query: &SessionQuery) -> Option<(String, Vec<String>)> {
    if let Some((first, last)) = ids(&query.prefix)? {
        // Without the first step, the server walks through all sessions by time.
        let named = "with named as materialized (select * from epitome_session where id between $7 and $8)";
        return Some((format!("{named} {}", select("named", "")), vec![first, last]));
    }
    let mut own = patterns(&query.words);
    let Some(longest) = own.first().cloned() else { return Some((select("epitome_session", ""), own)) };
    own.resize(PIECES, longest);
    // `exists` must not be part of another condition: it would be computed for all lines first.
    let found = " and exists (select 1 from epitome_entry e where e.session = s.id \
                 and e.line ilike $7 and e.line ilike $8 and e.line ilike $9)";
    Some((select("epitome_session", found), own))
}

/// The first and the last id that begin with `prefix`. Ids have the same length, so that all collations sort them in the
/// same way.
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
        let mut listing = Listing::default();
        let Some((sql, own)) = statement(query) else { return Ok(listing) };
        // Each in the order of an index, because two directories in one statement would be sorted as a whole.
        let spellings: BTreeSet<Option<String>> = match &query.cwd {
            None => BTreeSet::from([None]),
            Some(cwd) => {
                let real = cwd.canonicalize().unwrap_or_else(|_| cwd.clone());
                [cwd, &real].map(|path| Some(path.to_string_lossy().into_owned())).into()
            }
        };
        let is_merged = spellings.len() > 1;
        for cwd in spellings {
            self.list_one(query, &sql, &own, &cwd, &mut listing)?;
        }
        if is_merged {
            listing.headers.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));
            listing.headers.truncate(query.limit.unwrap_or(usize::MAX));
        }
        Ok(listing)
    }

    fn list_one(
        &self,
        query: &SessionQuery,
        sql: &str,
        own: &[String],
        cwd: &Option<String>,
        listing: &mut Listing,
    ) -> Result<(), StoreError> {
        let mut after = match &query.after {
            None => (i64::MAX, String::new()),
            Some((at, session)) => (i64::try_from(*at).unwrap_or(i64::MAX), session.0.clone()),
        };
        let mut left = query.limit.unwrap_or(usize::MAX);
        while left > 0 {
            let limit = left.min(PAGE);
            let mut params = vec![
                param(cwd.clone()),
                param(query.has_prompt),
                param(query.archived),
                param(after.0),
                param(after.1.clone()),
                param(limit as i64),
            ];
            params.extend(own.iter().cloned().map(param));
            let rows = self.query("list sessions", sql, params)?;
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
        Ok(())
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
