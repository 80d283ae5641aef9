//! Generated texts of each kind that agents read.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// Each kind of text with an example of a few kilobytes.
pub fn texts() -> [(&'static str, String); 7] {
    [
        ("prose", prose()),
        ("code", code()),
        ("json", json_text()),
        ("listing", listing()),
        ("log", log()),
        ("chinese", CHINESE.repeat(4)),
        ("base64", base64_text(3_000)),
    ]
}

pub fn prose() -> String {
    "The harbour was quiet when the last ferry came in. Nobody had told the new keeper that the light on the \
     northern pier needed a second lamp in winter, and so he stood there with a lantern in his hand, waving it \
     slowly from left to right, until the captain understood what he meant and turned the bow towards the open \
     channel. Afterwards they drank tea in the small office and spoke about the weather, the price of diesel, and \
     the question whether a village of four hundred people could afford to lose its school.\n\n\
     \"If you ask me,\" the captain said, \"it isn't the money. It's that everyone who could decide something \
     lives elsewhere.\" He wasn't bitter about it; he had simply seen the same thing happen on three other \
     islands. First the doctor leaves, then the shop closes on Mondays, and one autumn there are no children left \
     who would have to be taken across the water in the morning.\n\n\
     A good design review works in a similar way. You begin with the parts that look fine, because those are where \
     assumptions hide. Why does the scheduler keep two queues? Which of them is bounded, and what happens to the \
     one that isn't? Write the answers down before you look at the diagrams again. In our experience about half \
     of the problems that are later reported by users could have been found by reading the document aloud once.\n"
        .repeat(2)
}

pub fn code() -> String {
    const ITEM: &str = r#"
/// Keeps the newest samples of NAME, oldest first.
#[derive(Clone, Debug, Default)]
pub struct NAMEWindow {
    samples: VecDeque<(Instant, f64)>,
    capacity: usize,
}

impl NAMEWindow {
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(capacity > 0, "a window of nothing has no mean");
        Self { samples: VecDeque::with_capacity(capacity), capacity }
    }

    pub fn push(&mut self, at: Instant, value: f64) -> Result<(), OutOfOrder> {
        if let Some((last, _)) = self.samples.back() && *last > at {
            return Err(OutOfOrder { last: *last, at });
        }
        while self.samples.len() >= self.capacity {
            self.samples.pop_front();
        }
        self.samples.push_back((at, value));
        Ok(())
    }

    /// The mean of what is younger than `age`; `None` where nothing is.
    pub fn mean(&self, now: Instant, age: Duration) -> Option<f64> {
        let young = self.samples.iter().rev().take_while(|(at, _)| now.duration_since(*at) <= age);
        let (count, sum) = young.fold((0u32, 0.0), |(count, sum), (_, value)| (count + 1, sum + value));
        (count > 0).then(|| sum / f64::from(count))
    }
}
"#;
    ["Latency", "QueueDepth", "Throughput"].map(|name| ITEM.replace("NAME", name)).concat()
}

fn json_text() -> String {
    let rows: Vec<_> = (0..24u32)
        .map(|n| {
            let customer = ["Ada", "Boris", "Chen", "Dilara"][n as usize % 4];
            let status = ["open", "paid", "shipped"][n as usize % 3];
            json!({
                "id": format!("order-{:05}", n * 7_919 % 100_000),
                "customer": { "name": customer, "vip": n % 3 == 0 },
                "items": [{ "sku": format!("SKU-{}", n * 31 + 100), "quantity": n % 5 + 1, "price": f64::from(n) * 3.75 }],
                "created_at": format!("2026-0{}-1{}T08:{:02}:00Z", n % 9 + 1, n % 10, n * 2),
                "status": status,
            })
        })
        .collect();
    serde_json::to_string_pretty(&json!({ "orders": rows, "next": null })).expect("plain values")
}

fn listing() -> String {
    let names = ["main.rs", "lib.rs", "parser.rs", "lexer_tests.rs", "README.md", "Cargo.toml", "build.log"];
    (0..60u32).fold("total 4812\n".to_owned(), |mut out, n| {
        let name = names[n as usize % names.len()];
        let (size, day) = (n * 7_321 % 90_001, n % 28 + 1);
        let _ = writeln!(
            out,
            "-rw-r--r--  1 dev  staff  {size:6} Nov {day:2} 0{}:{:02} src/part_{n}/{name}",
            n % 10,
            n % 60
        );
        out
    })
}

pub fn log() -> String {
    (0..40u32).fold(String::new(), |mut out, n| {
        let (hex, ms) = (u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15), n * 13 % 977);
        let _ = writeln!(out, "2026-11-0{}T1{}:{:02}:07.{ms:03}Z  INFO request{{id={hex:016x}}}: served GET /api/v2/items/{n} status=200 in {ms}ms", n % 9 + 1, n % 10, n % 60);
        if n % 8 == 0 {
            let _ = writeln!(out, "error[E0308]: mismatched types\n  --> src/part_{n}/main.rs:{}:17\n   |\n{} |     let x: u32 = name.len();\n   |                  ^^^^^^^^^^ expected `u32`, found `usize`", n + 3, n + 3);
        }
        out
    })
}

/// Random bytes, the same each time.
pub fn base64_text(bytes: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    STANDARD.encode((0..bytes).map(|_| random.u8(..)).collect::<Vec<u8>>())
}

const CHINESE: &str = "请先阅读项目根目录下的说明文件,然后再修改代码。这个函数负责把用户输入的内容转换成内部格式,如果遇到无法识别的字符,\
就应当返回错误,而不是悄悄地忽略它。昨天的测试结果表明,在网络不稳定的情况下,客户端会重复发送同一个请求,因此服务器必须能够识别重复的\
编号。我们讨论了三种方案:第一种最简单,但是占用的内存太多;第二种需要修改数据库的结构;第三种把判断放在网关,风险最小。大家最后同意采用\
第三种方案,并在下周五之前完成。\n如果你对这个决定有不同的看法,请在会议之前写下来,说明原因,并给出一个可以验证的例子。天气渐渐冷了,港口\
的灯光在雾里显得很柔和,老船长端着热茶,慢慢地讲起他年轻时候的故事。\n";
