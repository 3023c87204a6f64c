//! Answers recorded from other programs, for the file SmolLM2-135M-Instruct Q4_1.

/// Texts and their tokens, from llama.cpp's `/tokenize` with special tokens parsed.
pub(crate) const TOKEN_IDS: &[(&str, &[u32])] = &[
    (
        "The quick brown fox jumps over the lazy dog.",
        &[504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30],
    ),
    (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        &[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    ),
    (
        "In 2024, 3.14159 is not 22/7!",
        &[788, 216, 34, 32, 34, 36, 28, 216, 35, 30, 33, 36, 33, 37, 41, 314, 441, 216, 34, 34, 31, 39, 17],
    ),
    (
        "\tfn main() {\n\t\tprintln!(\"hi\");\n\t}\n",
        &[197, 7853, 1085, 1000, 1662, 3354, 197, 3272, 34115, 17, 1470, 6004, 21646, 198, 197, 109, 198],
    ),
    (
        "naïve café — “quoted” ÅÄÖ",
        &[3546, 46494, 37366, 1841, 619, 385, 5036, 573, 5549, 223, 142, 222, 142, 240],
    ),
    (
        "日本語のテキスト、中文",
        &[
            23274, 115, 40993, 179, 120, 248, 26453, 11100, 224, 10391, 251, 10391, 134, 11100, 226, 29917,
            28589, 29184,
        ],
    ),
    ("emoji 🙂🚀 done", &[391, 33777, 47526, 10813, 244, 218, 2294]),
    ("don't we'll I'VE   spaces  ", &[12420, 982, 392, 3060, 339, 23, 18525, 256, 5600, 256]),
    ("<|im_end|><|endoftext|> <repo_name>x", &[2, 0, 216, 3, 104]),
];

/// "What is the capital of France?" in the model's own template, with its default system prompt.
pub(crate) const QUESTION: &[u32] = &[
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
    2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
];

/// After so many tokens of the question: the likeliest tokens and the logarithms of their
/// probabilities, from llama.cpp.
pub(crate) const LOG_PROBABILITIES: &[(usize, &[(usize, f64)])] = &[
    (11, &[(9337, -1.24), (95, -1.81), (1433, -1.91)]),
    (16, &[(253, -1.29), (260, -1.54), (1205, -2.97)]),
    (20, &[(198, -0.04)]),
    (37, &[(60, -1.85), (504, -2.01), (15319, -2.41)]),
];
