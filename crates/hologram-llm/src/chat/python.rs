//! The Python functions that templates use: JSON and dates.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Serde};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::bounds::Bounded;

/// `json.dumps` as in the transformers library: non-ASCII characters are not escaped; `indent`, `sort_keys` and
/// `separators` are supported; `ensure_ascii` may only be false.
pub(super) fn tojson(value: Serde<Json>, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ascii == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson with ensure_ascii is not supported"));
    }
    let style = match separators.as_deref() {
        None => Style { item: if indent.is_some() { "," } else { ", " }.into(), key: ": ".into(), indent },
        Some([item, key]) => Style { item: item.clone(), key: key.clone(), indent },
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings")),
    };
    let mut out = Bounded::default();
    write(&value.0, &style, sort == Some(true), 0, &mut out)?;
    Ok(Value::from_safe_string(out.into_text()))
}

struct Style {
    item: String,
    key: String,
    indent: Option<usize>,
}

fn write(value: &Json, style: &Style, sort: bool, depth: usize, out: &mut Bounded) -> fmt::Result {
    let line = |depth: usize, out: &mut Bounded| match style.indent {
        None => Ok(()),
        Some(n) => {
            out.write_char('\n')?;
            out.spaces(n.saturating_mul(depth))
        }
    };
    let all = |out: &mut Bounded, brackets: [char; 2], items: Vec<(Option<&str>, &Json)>| {
        out.write_char(brackets[0])?;
        for (i, (key, item)) in items.iter().enumerate() {
            if i > 0 {
                out.write_str(&style.item)?;
            }
            line(depth + 1, out)?;
            if let Some(key) = key {
                out.write_str(&Json::from(*key).to_string())?;
                out.write_str(&style.key)?;
            }
            write(item, style, sort, depth + 1, out)?;
        }
        if !items.is_empty() {
            line(depth, out)?;
        }
        out.write_char(brackets[1])
    };
    match value {
        Json::Array(items) => all(out, ['[', ']'], items.iter().map(|v| (None, v)).collect()),
        Json::Object(map) => {
            let mut items: Vec<_> = map.iter().map(|(k, v)| (Some(k.as_str()), v)).collect();
            if sort {
                items.sort_by_key(|(k, _)| *k);
            }
            all(out, ['{', '}'], items)
        }
        other => out.write_str(&other.to_string()),
    }
}

/// The current date and time in UTC, in a format of C's `strftime`.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(seconds, format)
}

fn strftime(seconds: u64, format: &str) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    let (days, second) = (seconds / 86400, seconds % 86400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // H. Hinnant's algorithm: years begin in March; a cycle of 400 years has 146097 days; day 0 is 0000-03-01.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let shifted = (5 * doy + 2) / 153;
    let day = doy - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1]
        + u64::from(leap && month > 2)
        + day;
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days + 4) as usize % 7]);
    let twelve = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let number = |n: u64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(twelve, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('B') => month_name.into(),
            Some('b' | 'h') => month_name[..3].into(),
            Some('A') => day_name.into(),
            Some('a') => day_name[..3].into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".into(),
            Some('%') => "%".into(),
            other => {
                let code = other.map_or(String::new(), String::from);
                let message = format!("strftime_now does not support %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %a %j", "1970-01-01 00:00:00 Thu 001"),
            (951_782_400, "%d %b %Y, %A, %j", "29 Feb 2000, Tuesday, 060"),
            (1_735_689_599, "%F %T %I%p %-d %B %y %%", "2024-12-31 23:59:59 11PM 31 December 24 %"),
            (1_709_251_200, "%e %-m %j", " 1 3 061"),
        ];
        for (seconds, format, want) in cases {
            assert_eq!(strftime(seconds, format).unwrap(), want);
        }
        assert!(strftime(0, "%Q").unwrap_err().to_string().contains("does not support %Q"));
    }
}
