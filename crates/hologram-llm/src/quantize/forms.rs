//! What GGUF files have instead of a folder's tensors, where llama.cpp's converter changes more than a name: rows in
//! another order or with a factor, parts apart, values computed anew.

use super::folder::{Kind, Wanted};
use crate::models::config::Config;
use crate::models::rope::source_row;
use crate::models::{Latent, MAMBA_MULTIPLIERS, RecurrentHeads, StateRule, Varied};

/// A tensor of a GGUF file, made of one of a folder.
pub(super) struct Form {
    pub name: String,
    pub shape: Vec<usize>,
    pub make: Make,
}

type Pick = Box<dyn Fn(usize) -> usize + Send + Sync>;
type Values = Box<dyn Fn(Vec<f32>) -> Vec<f32> + Send + Sync>;

/// How it is made.
pub(super) enum Make {
    /// Row by row.
    Rows(RowsOf),
    /// Of all values at once.
    All(Values),
}

/// Rows of the folder's tensor, in an order, with their elements in an order, and factors.
#[derive(Default)]
pub(super) struct RowsOf {
    pub pick: Option<Pick>,
    pub columns: Option<Vec<usize>>,
    /// By row of the GGUF file's tensor.
    pub factors: Option<Vec<f32>>,
    /// Of all rows.
    pub factor: Option<f32>,
}

impl Form {
    fn of(wanted: &Wanted, make: Make) -> Form {
        Form { name: wanted.name.clone(), shape: wanted.shape.clone(), make }
    }

    fn rows(wanted: &Wanted, rows: RowsOf) -> Form {
        Form::of(wanted, Make::Rows(rows))
    }

    fn picked(wanted: &Wanted, pick: impl Fn(usize) -> usize + Send + Sync + 'static) -> Form {
        Form::rows(wanted, RowsOf { pick: Some(Box::new(pick)), ..RowsOf::default() })
    }

    fn all(wanted: &Wanted, make: impl Fn(Vec<f32>) -> Vec<f32> + Send + Sync + 'static) -> Form {
        Form::of(wanted, Make::All(Box::new(make)))
    }

    fn named(self, name: String) -> Form {
        Form { name, ..self }
    }

    fn shaped(self, shape: &[usize]) -> Form {
        Form { shape: shape.to_vec(), ..self }
    }
}

/// The tensors that the layers load, as those to read: matrices that a GGUF file has together are one.
pub(super) fn joined(config: &Config, wanted: Vec<Wanted>) -> Vec<Wanted> {
    let varied = config.architecture.varied;
    let join = |mut own: Wanted| match own.name.as_str() {
        // The matrices of the branches.
        "altup_proj.weight" | "altup_unembd_proj.weight" => {
            own.shape = vec![own.shape[0] / config.width.max(1), config.width, config.width];
            Some(Wanted { kind: Kind::Experts, ..own })
        }
        name if varied == Varied::Sizes && name.ends_with("ffn_up_exps.weight") => None,
        name if varied == Varied::Sizes && name.ends_with("ffn_gate_exps.weight") => {
            own.name = name.replace("ffn_gate_exps", "ffn_gate_up_exps");
            own.shape[1] *= 2;
            Some(own)
        }
        _ => Some(own),
    };
    wanted.into_iter().filter_map(join).collect()
}

/// The tensors of the GGUF file that come of one that the layers load. `tied`: the output matrix is the embedding.
pub(super) fn forms(config: &Config, wanted: &Wanted, tied: bool) -> Vec<Form> {
    let mut parts = wanted.name.split('.');
    let of_layer = parts.next() == Some("blk");
    let layer = if of_layer { parts.next().unwrap_or_default() } else { "" };
    let part = if of_layer { parts.next() } else { wanted.name.split('.').next() }.unwrap_or_default();
    let named = |part: &str| format!("blk.{layer}.{part}");
    if let Some(heads) = config.recurrent.and_then(|r| r.heads)
        && let Some(forms) = of_state(config, heads, wanted, part, &named)
    {
        return forms;
    }
    if let (Some(latent), "attn_kv_b") = (config.latent, part) {
        return of_latent(config, latent, wanted, &named);
    }
    let (turned, head_dim) = (config.architecture.rope, config.head_dim);
    let permuted = config.architecture.folder.rope != turned && matches!(part, "attn_q" | "attn_k");
    match part {
        _ if permuted => {
            let source = move |row: usize| source_row(row, head_dim, turned);
            let form = match wanted.shape.len() {
                // The elements of a bias are those of rows.
                1 => Form::all(wanted, move |all| (0..all.len()).map(|i| all[source(i)]).collect()),
                _ => Form::picked(wanted, source),
            };
            vec![with_factor(form, config.multipliers.of(part))]
        }
        // Positions that texts do not use are left out.
        "position_embd" => {
            let reserved = config.architecture.encoder.map_or(0, |parts| parts.reserved_positions);
            vec![Form::picked(wanted, move |row| row + reserved).shaped(&[config.context, config.width])]
        }
        // Tokens behind the end of the table have its first row.
        "per_layer_token_embd" => {
            let (rows, row_len) = (wanted.shape[0], wanted.shape[1]);
            let pick = move |row| if row < rows { row } else { 0 };
            vec![Form::picked(wanted, pick).shaped(&[config.vocab, row_len])]
        }
        "ffn_norm" if config.architecture.state == Some(StateRule::MambaBeside) => {
            vec![Form::rows(wanted, RowsOf::default()).named(named("ffn_norm"))]
        }
        "token_embd" => {
            let of_matrix = |name: &str| {
                let form = Form::rows(wanted, RowsOf::default()).named(format!("{name}.weight"));
                with_factor(form, config.multipliers.of(name))
            };
            // A tied output has other factors.
            let apart = tied && !config.multipliers.is_neutral();
            std::iter::once("token_embd").chain(apart.then_some("output")).map(of_matrix).collect()
        }
        _ => vec![with_factor(Form::rows(wanted, RowsOf::default()), config.multipliers.of(part))],
    }
}

/// The tensors of a GGUF file that are multiplied with the same columns as a folder's weight, each with the order of
/// these columns if it is another.
pub(super) fn measured(
    config: &Config,
    name: &str,
    experts: usize,
    columns: usize,
) -> Vec<(String, Option<Vec<usize>>)> {
    let weight = match experts {
        0 | 1 => Wanted { name: name.into(), kind: Kind::Matrix, shape: vec![0, columns] },
        _ => Wanted { name: name.into(), kind: Kind::Experts, shape: vec![experts, 0, columns] },
    };
    let of_form = |form: Form| match form.make {
        Make::Rows(RowsOf { columns, .. }) => (form.name, columns),
        Make::All(_) => (form.name, None),
    };
    joined(config, vec![weight]).iter().flat_map(|weight| forms(config, weight, false)).map(of_form).collect()
}

fn with_factor(mut form: Form, factor: f32) -> Form {
    if let (Make::Rows(rows), true) = (&mut form.make, factor != 1.0) {
        rows.factor = Some(factor);
    }
    form
}

/// Keys and values of the heads apart, those of keys turned.
fn of_latent(config: &Config, latent: Latent, wanted: &Wanted, named: &dyn Fn(&str) -> String) -> Vec<Form> {
    let Latent { rank, plain, value, .. } = latent;
    let of_head = (plain + value) * rank;
    let keys = move |all: Vec<f32>| {
        let turned = |head: &[f32]| -> Vec<f32> {
            (0..rank).flat_map(|r| (0..plain).map(move |p| (r, p))).map(|(r, p)| head[p * rank + r]).collect()
        };
        all.chunks_exact(of_head.max(1)).flat_map(turned).collect()
    };
    let values =
        move |all: Vec<f32>| all.chunks_exact(of_head.max(1)).flat_map(|head| head[plain * rank..].to_vec()).collect();
    vec![
        Form::all(wanted, keys).named(named("attn_k_b.weight")).shaped(&[config.heads, rank, plain]),
        Form::all(wanted, values).named(named("attn_v_b.weight")).shaped(&[config.heads, value, rank]),
    ]
}

/// Those of recurrences; `None` for what stays as it is.
fn of_state(
    config: &Config,
    heads: RecurrentHeads,
    wanted: &Wanted,
    part: &str,
    named: &dyn Fn(&str) -> String,
) -> Option<Vec<Form>> {
    let RecurrentHeads { groups, key, heads: count, value } = heads;
    let [of_keys, inner] = heads.widths();
    let each = count / groups.max(1);
    let rule = config.architecture.state?;
    let StateRule::Heads { tiled, .. } = rule else {
        return match part {
            "ssm_a_log" => {
                let factors = |all: Vec<f32>| all.into_iter().map(|log| -log.exp()).collect();
                Some(vec![Form::all(wanted, factors).named(named("ssm_a")).shaped(&[count, 1])])
            }
            "ssm_norm" => Some(vec![Form::rows(wanted, RowsOf::default()).shaped(&[groups, inner / groups.max(1)])]),
            "ssm_in" if !config.multipliers.is_neutral() => {
                let lens = [inner, inner, of_keys, of_keys, count];
                let parts = MAMBA_MULTIPLIERS.map(|part| config.multipliers.of(part)).into_iter().zip(lens);
                let factors = parts.flat_map(|(factor, len)| std::iter::repeat_n(factor, len)).collect();
                Some(vec![Form::rows(wanted, RowsOf { factors: Some(factors), ..RowsOf::default() })])
            }
            // Gate and up are one matrix.
            "ffn_up" | "ffn_up_shexp" if rule == StateRule::Mamba => {
                let (rows, row_len) = (wanted.shape[0] / 2, wanted.shape[1]);
                let half = |name: String, first: usize| {
                    Form::picked(wanted, move |row| first + row).named(name).shaped(&[rows, row_len])
                };
                let gate = wanted.name.replace("ffn_up", "ffn_gate");
                Some(vec![half(gate, 0), half(wanted.name.clone(), rows)])
            }
            _ => None,
        };
    };
    // The folder's head of values at a place of the file: those of one key head are apart there.
    let source = move |head: usize| if tiled { head % groups * each + head / groups } else { head };
    let by_heads = move |start: usize, width: usize| {
        move |i: usize| match i.checked_sub(start) {
            Some(i) => start + source(i / width) * width + i % width,
            None => i,
        }
    };
    Some(match part {
        "ssm_a_log" => {
            let factors = move |all: Vec<f32>| (0..all.len()).map(|head| -all[source(head)].exp()).collect();
            vec![Form::all(wanted, factors).named(named("ssm_a"))]
        }
        "ssm_dt" => vec![Form::all(wanted, move |all| (0..all.len()).map(|head| all[source(head)]).collect())],
        "attn_qkv" | "ssm_conv1d" => vec![Form::picked(wanted, by_heads(2 * of_keys, value))],
        "attn_gate" => vec![Form::picked(wanted, by_heads(0, value))],
        "ssm_beta" | "ssm_alpha" => vec![Form::picked(wanted, by_heads(0, 1))],
        "ssm_out" => {
            let columns = (0..inner).map(by_heads(0, value)).collect();
            vec![Form::rows(wanted, RowsOf { columns: Some(columns), ..RowsOf::default() })]
        }
        // Queries, keys, values and gates of each key head in turn.
        "ssm_in" => {
            let (of_value, row_len) = (each * value, wanted.shape[1]);
            let stride = 2 * (key + of_value);
            let qkv = move |row: usize| {
                let (row, first, width) = match row {
                    row if row < of_keys => (row, 0, key),
                    row if row < 2 * of_keys => (row - of_keys, key, key),
                    row => (row - 2 * of_keys, 2 * key, of_value),
                };
                row / width * stride + first + row % width
            };
            let gate = move |row: usize| row / of_value * stride + 2 * key + of_value + row % of_value;
            vec![
                Form::picked(wanted, qkv).named(named("attn_qkv.weight")).shaped(&[2 * of_keys + inner, row_len]),
                Form::picked(wanted, gate).named(named("attn_gate.weight")).shaped(&[inner, row_len]),
            ]
        }
        _ => return None,
    })
}
