//! Selects the MCP tools for a conversation's tool list, which is part of every request: all tools of small servers,
//! and a fair share of those of large ones. Pure.

/// Maximum listed tools of all servers: OpenAI accepts 128 tools in total.
const TOOLS_MAX: usize = 96;
/// Maximum total bytes of those tools, for the largest window.
const BYTES_MAX: usize = 96 * 1024;
/// The part of the context window that they may occupy, as a divisor.
const WINDOW_PART: u64 = 8;
/// Approximate bytes per token of a schema.
const TOKEN_BYTES: u64 = 4;

/// Estimates the tokens of a tool list from its bytes.
pub fn tokens(bytes: usize) -> u64 {
    bytes as u64 / TOKEN_BYTES
}

/// Limits of the tool list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListBudget {
    bytes: usize,
    tools: usize,
}

impl ListBudget {
    /// The budget for a context window of this many tokens; the maximum if the size is unknown.
    pub fn for_window(window: Option<u64>) -> ListBudget {
        let share = window.map_or(u64::MAX, |window| window / WINDOW_PART * TOKEN_BYTES);
        ListBudget { bytes: usize::try_from(share).unwrap_or(usize::MAX).min(BYTES_MAX), tools: TOOLS_MAX }
    }

    /// The number of tools listed per server, from its first. `servers` has the sizes of each server's tools, in bytes.
    pub fn share(self, servers: &[Vec<usize>]) -> Vec<usize> {
        let mut listed = vec![0; servers.len()];
        let mut order: Vec<usize> = (0..servers.len()).collect();
        order.sort_by_key(|at| servers[*at].iter().sum::<usize>());
        let ListBudget { mut bytes, mut tools } = self;
        for (done, at) in order.iter().enumerate() {
            // The unused share of smaller servers goes to the larger ones.
            let left = order.len() - done;
            let fair = ListBudget { bytes: bytes / left, tools: tools / left };
            let count = fair.fitting(&servers[*at]);
            listed[*at] = count;
            bytes -= servers[*at][..count].iter().sum::<usize>();
            tools -= count;
        }
        // The remaining budget goes to the servers in order.
        for (at, sizes) in servers.iter().enumerate() {
            let rest = &sizes[listed[at]..];
            let count = ListBudget { bytes, tools }.fitting(rest);
            bytes -= rest[..count].iter().sum::<usize>();
            tools -= count;
            listed[at] += count;
        }
        listed
    }

    /// How many of these tools fit, from the first.
    fn fitting(self, sizes: &[usize]) -> usize {
        let mut bytes = 0;
        let fits = |size: &&usize| {
            bytes += **size;
            bytes <= self.bytes
        };
        sizes.iter().take(self.tools).take_while(fits).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with twelve servers, the last five in alphabetical order had no tool in the list, even one with two
    /// small tools.
    #[test]
    fn small_servers_are_listed_entirely_and_large_ones_fairly() {
        let budget = ListBudget { bytes: 100, tools: 10 };
        for (servers, listed) in [
            (vec![vec![90], vec![10, 10], vec![1, 1]], vec![0, 2, 2]),
            (vec![vec![10; 20], vec![10; 20]], vec![5, 5]),
            (vec![vec![10; 20], vec![1]], vec![9, 1]),
            (vec![vec![1; 30], vec![1; 2]], vec![8, 2]),
            (vec![vec![40, 40], vec![70]], vec![2, 0]),
            (vec![], vec![]),
        ] {
            assert_eq!(budget.share(&servers), listed, "{servers:?}");
        }
    }

    #[test]
    fn the_budget_is_a_share_of_the_window() {
        let bytes = |window| ListBudget::for_window(window).bytes;
        assert_eq!(bytes(Some(16_000)), 8_000);
        assert_eq!(bytes(Some(1_000_000)), BYTES_MAX);
        assert_eq!(bytes(None), BYTES_MAX);
    }
}
