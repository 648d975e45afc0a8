//! Prompts of several kinds.

/// One prompt of each kind: prose, code, a list, digits, a script that is not Latin.
pub(crate) const KINDS: [&str; 5] = [
    "The harbour was quiet in the morning, and the boats that had come in at night",
    "import os\n\n\ndef read_lines(path):\n    \"\"\"Return the lines of a file.\"\"\"\n    with open(",
    "1. apples\n2. pears\n3. plums\n4. cherries\n5.",
    "3.14159 2.71828 1.41421 1.73205 2.23606 2.44948",
    "海の月は静かで、波の音だけが聞こえる。Ωμέγα και άλφα",
];

/// A regular list that is plainly continued.
pub(crate) const EASY: &str = "def f0(x):\n    return x\n\ndef f1(x):\n    return x\n\n\
     def f2(x):\n    return x\n\ndef f3(x):\n    return x\n\n";

/// Words in an order that does not repeat, the same for the same `topic`; about 1.6 tokens a word.
pub(crate) fn long(topic: u64, n_words: usize) -> String {
    const WORDS: [&str; 16] = [
        "river", "import", "number", "table", "return", "garden", "value", "list", "class",
        "winter", "string", "buffer", "market", "error", "window", "path",
    ];
    let mut state = topic;
    let words = (0..n_words).map(|i| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let end = if i % 12 == 11 { ".\n" } else { " " };
        WORDS[(state >> 60) as usize].to_owned() + end
    });
    words.collect()
}
