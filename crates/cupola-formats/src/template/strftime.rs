//! The date and time that templates print with `strftime_now`.

/// A moment on a clock somewhere: seconds since 1970-01-01 UTC and how far that place's clock is ahead of UTC.
///
/// The library never asks for the time itself, so that the same conversation always gives the same prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub unix_seconds: i64,
    /// Seconds to add for local time.
    pub utc_offset: i32,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// Calendar fields of a [`Clock`].
struct Fields {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// 0 is Sunday.
    weekday: i64,
    /// 0 to 365.
    yearday: i64,
    unix_seconds: i64,
}

impl Clock {
    /// Formats as C's `strftime` does in the C locale, with the flags `-`, `_`, `0` and `^`. As in Python, a local time has
    /// no zone, so `%z` and `%Z` are empty, and `%f` is microseconds (always 0 here). Unknown directives stay as they are.
    pub fn format(&self, format: &str) -> String {
        Fields::of(*self).format(format)
    }
}

impl Fields {
    fn of(clock: Clock) -> Self {
        let seconds = clock.unix_seconds.saturating_add(i64::from(clock.utc_offset));
        let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Howard Hinnant's civil_from_days: count from 0000-03-01, so that the leap day ends a year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let yearday = before[(month - 1) as usize] + day - 1 + i64::from(leap && month > 2);
        Self {
            year,
            month,
            day,
            hour: time / 3600,
            minute: time / 60 % 60,
            second: time % 60,
            weekday: (days + 4).rem_euclid(7),
            yearday,
            unix_seconds: clock.unix_seconds,
        }
    }

    fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut after = rest.clone();
            let mut directive = after.next();
            let flag = directive.filter(|c| "-_0^".contains(*c));
            if flag.is_some() {
                directive = after.next();
            }
            match directive.and_then(|directive| self.directive(directive, flag)) {
                Some(text) => {
                    out.push_str(&text);
                    rest = after;
                }
                None => out.push('%'),
            }
        }
        out
    }

    /// The text of one directive, or none if there is no such directive.
    fn directive(&self, directive: char, flag: Option<char>) -> Option<String> {
        let pad = |value: i64, width: usize, usual: char| match flag.unwrap_or(usual) {
            '-' => value.to_string(),
            '_' => format!("{value:>width$}"),
            _ => format!("{value:0>width$}"),
        };
        let number = |value, width| pad(value, width, '0');
        let spaced = |value, width| pad(value, width, '_');
        let hour12 = (self.hour + 11) % 12 + 1;
        let name = |names: &[&str], index: i64, length: usize| {
            let name = usize::try_from(index).ok().and_then(|i| names.get(i)).copied().unwrap_or_default();
            name[..length.min(name.len())].to_owned()
        };
        let text = match directive {
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'a' => name(&DAYS, self.weekday, 3),
            'A' => name(&DAYS, self.weekday, usize::MAX),
            'b' | 'h' => name(&MONTHS, self.month - 1, 3),
            'B' => name(&MONTHS, self.month - 1, usize::MAX),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'P' => if self.hour < 12 { "am" } else { "pm" }.to_owned(),
            'd' => number(self.day, 2),
            'e' => spaced(self.day, 2),
            'm' => number(self.month, 2),
            'y' => number(self.year.rem_euclid(100), 2),
            'C' => number(self.year.div_euclid(100), 2),
            'Y' => number(self.year, 1),
            'H' => number(self.hour, 2),
            'k' => spaced(self.hour, 2),
            'I' => number(hour12, 2),
            'l' => spaced(hour12, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'f' => "000000".to_owned(),
            'j' => number(self.yearday + 1, 3),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'U' => number((self.yearday + 7 - self.weekday) / 7, 2),
            'W' => number((self.yearday + 7 - (self.weekday + 6) % 7) / 7, 2),
            'V' => number(self.iso_week().1, 2),
            'G' => number(self.iso_week().0, 1),
            'g' => number(self.iso_week().0.rem_euclid(100), 2),
            's' => self.unix_seconds.to_string(),
            'z' | 'Z' => String::new(),
            'D' | 'x' => self.format("%m/%d/%y"),
            'F' => self.format("%Y-%m-%d"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'r' => self.format("%I:%M:%S %p"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            _ => return None,
        };
        Some(if flag == Some('^') { text.to_uppercase() } else { text })
    }

    /// Year and week by ISO 8601: weeks start on Monday and belong to the year of their Thursday.
    fn iso_week(&self) -> (i64, i64) {
        let thursday = self.yearday - (self.weekday + 6) % 7 + 3;
        let length = |year: i64| 365 + i64::from((year % 4 == 0 && year % 100 != 0) || year % 400 == 0);
        if thursday < 0 {
            (self.year - 1, (thursday + length(self.year - 1)) / 7 + 1)
        } else if thursday >= length(self.year) {
            (self.year + 1, 1)
        } else {
            (self.year, thursday / 7 + 1)
        }
    }
}
