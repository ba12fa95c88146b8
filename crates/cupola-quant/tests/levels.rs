//! What the documentation of `blocks` promises to code that repacks weights: levels, groups, exact products.

use std::cell::RefCell;
use std::collections::BTreeSet;

use cupola_quant::blocks::*;
use cupola_quant::decode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Calls `$check::<B>($arguments)` for every block format.
macro_rules! for_all_blocks {
    ($check:ident $arguments:tt) => {
        for_all_blocks!(
            $check $arguments Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS
            IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
        )
    };
    ($check:ident $arguments:tt $($block:ident)*) => { $($check::<$block> $arguments;)* };
}

/// The levels that the table in the documentation of `blocks` names.
fn documented_levels(name: &str) -> BTreeSet<i8> {
    let both_signs = |sizes: &[i8]| sizes.iter().flat_map(|&size| [size, -size]).collect();
    match name {
        "Q1_0" => [-1, 1].into(),
        "Q2_0" | "TQ2_0" => (-1..=2).collect(),
        "TQ1_0" => (-1..=1).collect(),
        "Q4_0" => (-8..=7).collect(),
        "Q4_1" | "Q4_K" => (0..=15).collect(),
        "Q5_0" => (-16..=15).collect(),
        "Q5_1" | "Q5_K" => (0..=31).collect(),
        "Q8_0" => (-128..=127).collect(),
        "Q2_K" => (0..=3).collect(),
        "Q3_K" => (-4..=3).collect(),
        "Q6_K" => (-32..=31).collect(),
        "IQ1_S" | "IQ1_M" => both_signs(&[1, 7, 9]),
        "IQ2_XXS" | "IQ2_XS" | "IQ2_S" => both_signs(&[8, 25, 43]),
        "IQ3_XXS" => both_signs(&[4, 12, 20, 28, 36, 44, 52, 62]),
        "IQ3_S" => both_signs(&[1, 3, 5, 7, 9, 11, 13, 15]),
        "IQ4_NL" | "IQ4_XS" => [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113].into(),
        "MXFP4" | "NVFP4" => both_signs(&[0, 1, 2, 3, 4, 6, 8, 12]),
        _ => panic!("{name}"),
    }
}

fn check_block<B: Block>(bytes: &[u8], levels: &mut BTreeSet<i8>) {
    let layout = B::FORMAT.layout();
    let block = &bytes[..layout.bytes];
    let mut values = vec![0.0; layout.block];
    decode(B::FORMAT, block, &mut values).unwrap();
    for (k, value) in values.into_iter().enumerate() {
        let (code, level, (scale, min)) = (B::code(block, k), B::level(block, k), B::scale_min(block, k));
        levels.insert(level);
        assert!(u32::from(code) < 1 << B::BITS, "{}: code {code}", B::FORMAT);
        match B::TABLE {
            Some(table) => assert_eq!((table.len(), table[usize::from(code)]), (1 << B::BITS, level), "{}", B::FORMAT),
            None => assert_eq!(i32::from(code) - B::OFFSET, i32::from(level), "{}", B::FORMAT),
        }
        // Scales that are no numbers, and overflow.
        let product = scale * f32::from(level);
        if !product.is_finite() || !min.is_finite() {
            continue;
        }
        assert_eq!(f64::from(product), f64::from(scale) * f64::from(level), "{}: {scale:e} * {level}", B::FORMAT);
        assert_eq!(value, product - min, "{} value {k}", B::FORMAT);
        assert_eq!((scale, min), B::scale_min(block, k / B::GROUP * B::GROUP), "{}", B::FORMAT);
    }
}

fn check<B: Block>() {
    let levels = RefCell::new(BTreeSet::new());
    let blocks = any::<[[u8; 16]; 16]>();
    let mut runner = TestRunner::deterministic();
    (runner.run(&blocks, |bytes| {
        check_block::<B>(bytes.as_flattened(), &mut levels.borrow_mut());
        Ok(())
    }))
    .unwrap();
    assert_eq!(levels.into_inner(), documented_levels(B::FORMAT.name()), "{}", B::FORMAT);
}

#[test]
fn values_are_exact_multiples_of_documented_levels() {
    for_all_blocks!(check());
}
