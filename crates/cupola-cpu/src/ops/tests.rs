//! Every op on every tier against the reference.

use super::*;
use crate::Tier;
use crate::reference;
use cupola_graph::{Activation, Gating, NormKind, RopeStyle};
use std::cell::Cell;

/// Around the widths of vectors, and a model's.
const WIDTHS: [usize; 9] = [1, 2, 31, 32, 33, 63, 64, 65, 576];
const ACTIVATIONS: [Activation; 6] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::Gelu,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Sigmoid,
];

/// Numbers from about -4 to 4, the same for the same seed.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 21) as f32 - 4.0
    };
    (0..n).map(|_| next()).collect()
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn cells(x: &mut [f32]) -> &[Cell<f32>] {
    Cell::from_mut(x).as_slice_of_cells()
}

/// Runs an op apart from its input and over it, on every tier.
fn check(x: &[f32], expected: &[f32], op: impl Fn(Tier, &[Cell<f32>], &[Cell<f32>])) {
    for tier in Tier::available() {
        let (mut input, mut out) = (x.to_vec(), vec![f32::NAN; x.len()]);
        op(tier, cells(&mut input), cells(&mut out));
        assert_eq!(bits(&out), bits(expected), "{tier}, {} wide", x.len());
        assert_eq!(bits(&input), bits(x), "{tier}: the input has changed");
        let row = cells(&mut input);
        op(tier, row, row);
        assert_eq!(bits(&input), bits(expected), "{tier} in place, {} wide", x.len());
    }
}

#[test]
fn norms() {
    for kind in [NormKind::Rms, NormKind::Layer] {
        for group in WIDTHS {
            let (weight, bias) = (numbers(group, 2), numbers(group, 3));
            for groups in [1, 3] {
                for (weight, bias) in [(None, None), (Some(&*weight), None), (Some(&*weight), Some(&*bias))] {
                    let x = numbers(group * groups, 1);
                    let mut expected = x.clone();
                    expected.chunks_mut(group).for_each(|x| reference::norm(kind, x, weight, bias, 1e-5));
                    check(&x, &expected, |tier, x, out| norm(tier, kind, group, weight, bias, 1e-5, x, out));
                }
            }
        }
    }
}

/// Values computed by hand: the mean square of (3, 4) is 12.5; (1, 3) has mean 2 and deviation 1.
#[test]
fn norms_of_known_values() {
    let run = |kind, x: [f32; 2]| {
        let mut x = x;
        let row = cells(&mut x);
        norm(Tier::detect(), kind, 2, Some(&[1.0, 2.0]), None, 0.0, row, row);
        x
    };
    let [a, b] = run(NormKind::Rms, [3.0, 4.0]);
    assert!((a - 3.0 / 12.5f32.sqrt()).abs() < 1e-6 && (b - 8.0 / 12.5f32.sqrt()).abs() < 1e-6);
    assert_eq!(run(NormKind::Layer, [1.0, 3.0]), [-1.0, 2.0]);
}

#[test]
fn ropes() {
    for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
        for (head_dim, rotated) in [(2, 2), (6, 4), (64, 64), (80, 32), (66, 66), (128, 128), (8, 0)] {
            let angles = numbers(rotated / 2, 5);
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            let x = numbers(3 * head_dim, 4);
            let mut expected = x.clone();
            expected.chunks_mut(head_dim).for_each(|head| reference::rope(style, head, &cos, &sin));
            check(&x, &expected, |tier, x, out| rope(tier, style, head_dim, &cos, &sin, x, out));
        }
    }
}

/// A quarter turn of the pairs (1, 3), (2, 4) or (1, 2), (3, 4).
#[test]
fn ropes_of_known_values() {
    let run = |style| {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        let row = cells(&mut x);
        rope(Tier::detect(), style, 4, &[0.0; 2], &[1.0; 2], row, row);
        x
    };
    assert_eq!(run(RopeStyle::Halves), [-3.0, -4.0, 1.0, 2.0]);
    assert_eq!(run(RopeStyle::Interleaved), [-2.0, 1.0, -4.0, 3.0]);
}

#[test]
fn elementwise() {
    for n in WIDTHS {
        let (x, other) = (numbers(n, 6), numbers(n, 7));
        let map = |f: &dyn Fn(f32) -> f32| x.iter().map(|x| f(*x)).collect::<Vec<f32>>();
        let zip = |f: &dyn Fn(f32, f32) -> f32| x.iter().zip(&other).map(|(x, y)| f(*x, *y)).collect::<Vec<f32>>();
        for activation in ACTIVATIONS {
            let expected = map(&|x| reference::activate(activation, x));
            check(&x, &expected, |tier, x, out| activate(tier, activation, x, out));
        }
        let clamped = Gating::ClampedSwiglu { alpha: 1.702, limit: 0.9 };
        for gating in ACTIVATIONS.map(Gating::Plain).into_iter().chain([clamped]) {
            let expected = zip(&|x, y| reference::gate(gating, x, y));
            check(&x, &expected, |tier, x, out| glu(tier, gating, x, cells(&mut other.clone()), out));
            // The second operand may be written over too.
            check(&other, &expected, |tier, y, out| glu(tier, gating, cells(&mut x.clone()), y, out));
        }
        let expected = zip(&|x, y| 0.3f32.mul_add(y, x));
        check(&x, &expected, |tier, x, out| {
            out.iter().zip(x).for_each(|(out, x)| out.set(x.get()));
            add_scaled(tier, cells(&mut other.clone()), 0.3, out);
        });
        check(&x, &zip(&|x, y| x + y), |tier, x, out| add(tier, x, cells(&mut other.clone()), out));
        check(&x, &map(&|x| x + x), |tier, x, out| add(tier, x, x, out));
        check(&x, &map(&|x| 0.3 * x), |tier, x, out| scale(tier, x, 0.3, out));
        check(&x, &map(&|x| reference::softcap(x, 1.5)), |tier, x, out| softcap(tier, x, 1.5, out));
    }
}

fn one(x: f32, f: impl Fn(&[Cell<f32>])) -> f32 {
    let mut x = [x];
    f(cells(&mut x));
    x[0]
}

/// Values of the definitions, from f64 arithmetic.
#[test]
fn activations_of_known_values() {
    for tier in Tier::available() {
        let of = |activation, x| one(x, |row| activate(tier, activation, row, row));
        for (activation, x, expected) in [
            (Activation::Silu, 1.0, 0.731_058_6),
            (Activation::Silu, -20.0, -4.122_307e-8),
            (Activation::GeluTanh, 1.0, 0.841_192),
            (Activation::Gelu, 1.0, 0.841_344_7),
            (Activation::Gelu, -3.0, -0.004_049_694),
            (Activation::Relu, -2.0, 0.0),
            (Activation::Relu, 2.0, 2.0),
            (Activation::ReluSquared, 3.0, 9.0),
            (Activation::Sigmoid, -2.0, 0.119_202_92),
        ] {
            let y: f32 = of(activation, x);
            assert!((y - expected).abs() <= 2e-6 * expected.abs(), "{tier}: {activation:?}({x}) is {y}");
        }
        assert!(of(Activation::Silu, f32::NAN).is_nan() && of(Activation::Relu, f32::NAN).is_nan());
        assert_eq!(of(Activation::Silu, 200.0), 200.0);
        assert_eq!(of(Activation::Silu, -200.0), -0.0);
    }
}

/// gpt-oss's values of alpha and limit.
#[test]
fn clamped_gates_of_known_values() {
    let gating = Gating::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
    for tier in Tier::available() {
        for (gate, up, expected) in [(1.0, 1.0, 1.691_592), (10.0, -10.0, -41.999_719), (0.5, 0.0, 0.350_388)] {
            let y = one(gate, |row| glu(tier, gating, row, cells(&mut [up]), row));
            assert!((y - expected).abs() < 1e-5 * expected.abs(), "{tier}: {y}");
        }
    }
}

#[test]
fn softcaps_of_known_values() {
    for tier in Tier::available() {
        for (x, expected) in [(50.0, 38.079_71), (100.0, 48.201_379), (-100.0, -48.201_379)] {
            let y = one(x, |row| softcap(tier, row, 50.0, row));
            assert!((y - expected).abs() < 1e-5, "{tier}: {y}");
        }
    }
}
