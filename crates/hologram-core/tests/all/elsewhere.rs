//! Parts of a graph that another device computes: two CPUs, of which each has its own memory.

use hologram_core::{CoreError, DType, Dim, Executor, Function, Graph, NodeId, Plan, Tensor};

const WIDTH: usize = 24;
const MOST: usize = 9;

fn cpu(threads: usize) -> Executor {
    Executor::open("cpu", Some(threads)).unwrap()
}

fn weights(executor: &Executor, seed: usize) -> Tensor {
    let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| ((i * 37 + seed * 11) % 23) as f32 / 23.0 - 0.5).collect();
    Tensor::from_slice(executor, &[WIDTH, WIDTH], &values).unwrap()
}

/// `relu(x)` through two products, one after another, with work beside each: on `other`, or on the graph's own device.
fn graph(own: &Executor, other: Option<&Executor>) -> Graph {
    let mut g = Graph::new();
    let rows = g.extent("rows", MOST);
    let x = g.input("x", DType::F32, &[rows, Dim::Fixed(WIDTH)]).unwrap();
    let scale = g.input("scale", DType::F32, &[rows, Dim::Fixed(1)]).unwrap();
    let own_weights = g.constant(&weights(own, 9)).unwrap();
    let mut x = g.relu(x).unwrap();
    for seed in 0..2 {
        let product = |g: &mut Graph, x: NodeId, scale: NodeId, on: &Executor| -> Result<NodeId, CoreError> {
            let w = g.constant(&weights(on, seed))?;
            let y = g.linear(x, w)?;
            g.mul(y, scale)
        };
        let y = match other {
            Some(other) => {
                g.elsewhere(other, &[x, scale], |g, inputs| product(g, inputs[0], inputs[1], other)).unwrap()
            }
            None => product(&mut g, x, scale, own).unwrap(),
        };
        // This does not need the part's result.
        let beside = g.linear(x, own_weights).unwrap();
        x = g.add(beside, y).unwrap();
    }
    g.output("y", x).unwrap();
    g
}

fn run(plan: &mut Plan, rows: usize, seed: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..rows * WIDTH).map(|i| ((i * 13 + seed) % 31) as f32 / 31.0 - 0.4).collect();
    let scale: Vec<f32> = (0..rows).map(|i| 0.5 + i as f32).collect();
    plan.write("x", &x).unwrap();
    plan.write("scale", &scale).unwrap();
    plan.set_extent("rows", rows).unwrap();
    plan.run().unwrap();
    plan.read("y").unwrap()
}

#[test]
fn another_device_computes_the_same() {
    let (own, other) = (cpu(1), cpu(2));
    let mut alone = graph(&own, None).compile(&own, &[]).unwrap();
    let mut apart = graph(&own, Some(&other)).compile(&own, &[]).unwrap();
    assert!(apart.launches() >= alone.launches());
    for (rows, seed) in [(MOST, 1), (1, 2), (4, 3), (0, 4), (MOST, 5)] {
        let (want, got) = (run(&mut alone, rows, seed), run(&mut apart, rows, seed));
        assert_eq!(want.len(), rows * WIDTH);
        let near = want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0));
        assert!(near, "{rows} rows: {want:?}, {got:?}");
    }
    // Devices that measure times run all again, with the last inputs.
    let before: Vec<f32> = apart.read("y").unwrap();
    assert_eq!(apart.profile().unwrap().len(), apart.launches());
    assert_eq!(apart.read::<f32>("y").unwrap(), before);
    let mut small = graph(&own, Some(&other)).compile(&own, &[("rows", 2)]).unwrap();
    assert_eq!(run(&mut small, 2, 7).len(), 2 * WIDTH);
}

#[test]
fn a_part_may_be_all_there_is() {
    let (own, other) = (cpu(1), cpu(1));
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[Dim::Fixed(3)]).unwrap();
    let y = g.elsewhere(&other, &[x], |g, inputs| g.mul_scalar(inputs[0], 2.0)).unwrap();
    g.output("y", y).unwrap();
    assert!(g.to_string().contains("elsewhere on cpu %0"), "{g}");
    let mut plan = g.compile(&own, &[]).unwrap();
    plan.write("x", &[1.0f32, 2.0, 3.0]).unwrap();
    plan.run().unwrap();
    assert_eq!(plan.read::<f32>("y").unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn what_cannot_go_elsewhere_is_rejected() {
    let (own, other) = (cpu(1), cpu(1));
    let message = |result: Result<NodeId, CoreError>| result.unwrap_err().to_string();
    let twice = |g: &mut Graph, inputs: &[NodeId]| g.mul_scalar(inputs[0], 2.0);
    let mut g = Graph::new();
    let state = Tensor::from_slice(&own, &[4], &[0.0f32; 4]).unwrap();
    let state = g.state(&state).unwrap();
    assert!(message(g.elsewhere(&other, &[state], twice)).contains("a state cannot go to another device"));
    let x = g.input("x", DType::F32, &[Dim::Fixed(1), Dim::Fixed(32)]).unwrap();
    let codes = g.quantize(x, 32, 0.0).unwrap();
    assert!(message(g.elsewhere(&other, &[codes], twice)).contains("cannot move between devices"));
    let result = g.elsewhere(&other, &[x], |g, inputs| g.quantize(inputs[0], 32, 0.0));
    assert!(message(result).contains("cannot move between devices"));
    let nested = g.elsewhere(&other, &[x], |g, inputs| g.elsewhere(&own, inputs, twice));
    assert!(message(nested).contains("a part cannot have parts"));
    // Its constants are the other device's.
    let foreign = g.elsewhere(&other, &[x], |g, inputs| {
        let w = g.constant(&weights(&own, 0))?;
        let w = g.slice(w, 0, 0, 1)?;
        let w = g.slice(w, 1, 0, 1)?;
        g.mul(inputs[0], w)
    });
    foreign.unwrap();
    let y = g.relu(x).unwrap();
    g.output("y", y).unwrap();
    assert!(g.compile(&own, &[]).is_ok(), "nothing needs the part");

    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[Dim::Fixed(1), Dim::Fixed(1)]).unwrap();
    let y = g
        .elsewhere(&other, &[x], |g, inputs| {
            let w = g.constant(&Tensor::from_slice(&own, &[1, 1], &[2.0f32])?)?;
            g.mul(inputs[0], w)
        })
        .unwrap();
    assert!(message(g.gradients(y, &[x]).map(|grads| grads[0])).contains("elsewhere"));
    g.output("y", y).unwrap();
    let error = g.compile(&own, &[]).err().unwrap().to_string();
    assert!(error.contains("belongs to another executor"), "{error}");

    let function = Function::new(&own, move |g, x| Ok(vec![g.elsewhere(&other, x, twice)?]));
    let x = Tensor::from_slice(&own, &[2], &[1.0f32, 2.0]).unwrap();
    assert!(function.call(&[&x]).unwrap_err().to_string().contains("runs as a plan"));
}
