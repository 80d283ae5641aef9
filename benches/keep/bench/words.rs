//! Names as programmers give them, and other small random things. All from one seed; what is planted is never
//! made twice in a conversation.

use std::collections::HashSet;

use fastrand::Rng;

const HEADS: &[&str] = &[
    "heron", "ledger", "quota", "shard", "tenant", "invoice", "session", "cursor", "replica", "batch",
    "socket", "token", "refund", "tariff", "depot", "parcel", "beacon", "harbor", "mirror", "anchor",
    "falcon", "tundra", "copper", "walnut", "lantern", "orchid", "pepper", "saddle", "turbine", "velvet",
    "willow", "zephyr", "basalt", "cobalt", "dune", "ember", "fjord", "granite", "hazel", "indigo",
    "juniper", "kelp", "lotus", "maple",
];
const MIDDLES: &[&str] = &[
    "flush", "retry", "sync", "merge", "purge", "export", "import", "index", "audit", "replay", "drain",
    "fetch", "route", "scan", "seal", "split", "trim", "vault", "watch", "claim", "digest", "expiry", "feed",
    "grant", "hold", "intake", "join", "lease", "match", "notify", "offset", "parse", "query", "render",
    "stage", "throttle",
];
const TAILS: &[&str] = &[
    "queue", "cache", "store", "gate", "pool", "worker", "table", "codec", "guard", "handler", "job",
    "limit", "log", "map", "node", "policy", "probe", "registry", "router", "schema", "service", "state",
    "stream", "task", "timer", "tracker", "tree", "view", "window", "writer",
];
const FOLDERS: &[&str] = &[
    "api", "billing", "core", "db", "edge", "gateway", "infra", "jobs", "mail", "net", "ops", "search",
    "server", "storage", "sync", "web",
];
const ENDINGS: &[&str] = &["rs", "py", "ts", "go", "toml", "yaml", "sql", "md", "tsx", "json", "sh", "proto"];

/// Gives names out.
pub struct Names {
    pub rng: Rng,
    planted: HashSet<String>,
}

impl Names {
    pub fn new(seed: u64) -> Names {
        Names { rng: Rng::with_seed(seed), planted: HashSet::new() }
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())]
    }

    /// A name that stands for one planted thing: no other name of this conversation equals it.
    pub fn planted_ident(&mut self) -> String {
        loop {
            let ident = self.any_ident();
            if self.planted.insert(ident.clone()) {
                return ident;
            }
        }
    }

    /// A name of something that does not matter.
    pub fn ident(&mut self) -> String {
        loop {
            let ident = self.any_ident();
            if !self.planted.contains(&ident) {
                return ident;
            }
        }
    }

    /// A relative path of which there is only one.
    pub fn planted_path(&mut self) -> String {
        loop {
            let path = self.any_path();
            if self.planted.insert(path.clone()) {
                return path;
            }
        }
    }

    pub fn path(&mut self) -> String {
        loop {
            let path = self.any_path();
            if !self.planted.contains(&path) {
                return path;
            }
        }
    }

    /// So many hexadecimal digits, of which there is only one.
    pub fn planted_hex(&mut self, digits: usize) -> String {
        loop {
            let hex = self.hex(digits);
            if self.planted.insert(hex.clone()) {
                return hex;
            }
        }
    }

    pub fn hex(&mut self, digits: usize) -> String {
        (0..digits).map(|_| char::from_digit(self.rng.u32(..16), 16).expect("below the radix")).collect()
    }

    fn any_ident(&mut self) -> String {
        let (head, middle, tail) = (self.pick(HEADS), self.pick(MIDDLES), self.pick(TAILS));
        match self.rng.u8(..3) {
            0 => format!("{head}_{tail}"),
            1 => format!("{middle}_{head}_{tail}"),
            _ => format!("{head}_{middle}_{tail}"),
        }
    }

    fn any_path(&mut self) -> String {
        let top = self.pick(&["src", "lib", "crates", "packages", "services", "deploy", "tests", "scripts"]);
        let (folder, ending) = (self.pick(FOLDERS), self.pick(ENDINGS));
        let name = self.any_ident();
        match self.rng.u8(..3) {
            0 => format!("{top}/{name}.{ending}"),
            1 => format!("{top}/{folder}/{name}.{ending}"),
            _ => format!("{top}/{folder}/{}/{name}.{ending}", self.pick(MIDDLES)),
        }
    }
}

/// `heron_pool` as `HeronPool`.
pub fn camel(ident: &str) -> String {
    ident.split('_').map(capitalised).collect()
}

/// With a capital at its beginning, if that is a letter.
pub fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
