"""What the reference library takes each character for: the classes that its split patterns name, and what its NFC composes.

In: nothing; out: a table of one byte a code point, made once a process for `smg_ext.bpe_characters`. Python's own `unicodedata` will
not do: its version of Unicode goes with Python's, and the library's parts have others. `tests/tokenizer/sweep.py` writes the runs at
the end.
"""

import base64
import zlib
from enum import IntEnum
from functools import cache

from smg._ext import Characters

__all__ = ["CODE_POINTS", "COMPOSED", "STRANGE", "Kind", "characters", "entries", "unpacked"]

CODE_POINTS = 0x110000
COMPOSED = 1 << 5  # composing may change it or what stands beside it
STRANGE = 2 << 5  # the library composes nothing with it, whatever Python does


class Kind(IntEnum):
    """The lower five bits of an entry. What patterns tell apart by name has a kind of its own, single characters among it."""

    OTHER = 0
    UPPER = 1  # Lu, Lt
    LOWER = 2  # Ll
    LETTER = 3  # Lm, Lo
    MARK = 4
    NUMBER = 5
    PUNCTUATION = 6
    SYMBOL = 7
    SPACE = 8  # all others that \\s matches
    NEWLINE = 9  # \\r, \\n
    BLANK = 10  # the space of ASCII
    HAN_LETTER = 11
    HAN_NUMBER = 12
    HAN_SYMBOL = 13  # S, P
    HAN_MARK = 14
    APOSTROPHE = 15
    SLASH = 16
    DIGIT = 17  # a number for `Digits` only, whose Unicode is newer


def unpacked() -> bytes:
    """Gives the runs: a length less one, seven bits a byte, then an entry."""
    return zlib.decompress(base64.b64decode(RUNS))


def entries() -> bytes:
    """Gives the table."""
    parts: list[bytes] = []
    length = shift = 0
    ends = iter(unpacked())
    for byte in ends:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            parts.append(bytes((next(ends),)) * (length + 1))
            length = shift = 0
    return b"".join(parts)


@cache
def characters() -> Characters:
    """Gives the native form of the table, which all tokenizers share."""
    return Characters(entries())


RUNS = (
    "eNrdWU2MHEcVrqpXVa97emb2d9be9Y7H6+ndtb221/+JEiV+9vTuRLGSKBIBc0BECUjAAQ45wQVFKLmQCJQDUpCQgIgrICGQbxGCcAChIEHEAUURF5BAiFOUAyDzveqe8doh"
    "FiHgiBzeVHf99Xuv3t9XkxmTmdyC5oxpuWjYRjOjLWg2DzY69Cxb7TGgZWeap4CVy7o6erxbNpRGDLENaJ3Vt6C9Lpi4ZA1Hu88ZZmesuYNk3+P4eyM7fXbTZ23x42j6XI/Z"
    "t62ze+ZP+tFHuhvRZI19zzqo50z2cXf0fCYUG1lqXult4xXkXnFzRFxQhz1FtTjQLD9cGj8opzOH6NWdxJBzZsNYEqs9G5BL0Ip+ZxZtZg8nuVX/745XX7c8OZEzdvu/owX2"
    "pfV3Uu/2ffKLO0KybtUKQjyCaGTFsZHjJaIUyDZkSpYVIoE3xZYEo9FOY6Dllo4aF4/RYpkHipZM+YTGOIqlMYh/pSXswIQ2DzBY2GInwsIQAk3Zp5XSylVqefRKHg5Rhnkp"
    "qhJ4qiz3iEqDXlgpCOcuXazejzeM46lFXvZhRSBYrPGSVUcprzr49mpJ/jzBTrCui188YS/neQiOvI054u0MOW+E8S30SQ97RBC+pZKKrjRl8BhNpO+MXnjKELPqfcA1Wg6h"
    "ie0VNIg9A7R1855mOPm19d7iPU13dmJ8FDc0OncYdVfvyHgT87Rfhn68T/eDlsQ3PDLGdY7uoyfZlQlnmmuinm0z41ZJ9+5ys6RY5W0jqZvsBglDyDGiXAZoSTkitLaWEK1L"
    "5EAFNABdeZe+7BreAvo60g7MHvJzI9USaCadOOym4dUlLmA7+n0xNeeJD/AWY+IGc+LePfI98lB95jftFRKnU+3oW1UI+Yl2j5Ctak3cWKfxk3S0jKHWxHyo7U1nzEFS2F86"
    "H+Ux4l0txJQeo9CUQB58F+epeo2FbONULbhzOotxCl6tEueMKqKcatKD9jXPebMCuqjUim0a1RFSCSuTdicaqOVyN1Ue8NAy8IJqqZwQvFNtakjp1FI7pQKEZCkBWQKzve7s"
    "k/d7tR6cI9bU7ZQ4zawpWRe+ERA9LPuI+gbSHNMTauZZXYMYECJ8w5OOgCzOG9/1bY0BqmuPKOItr6cs5EFWjmk1hSz1OC0OT9PK8BmbBLATx0rPR5r20L8Y66K9u3m+DHJl"
    "FheCg8nlHOQxfCJoIox/9por4yyhZkOkc/IgOdRlTBHnnPy/ymQ+PdmYpb5C2o3t6PNZ6idZNX6lWpDU6iFzolaEzEYlDIh5US3Vr5FK7WWHcjmIXQrEhKyxDfgSrKKfzrsl"
    "WzidZfhPC4yv8RKiqlNfjecoV0srFzyrh5WTr8WoMd0KYqGfqU7B205iTUfPQ7ndhR/FnLMy01i+63yfMpwR7BtntAWuWnhjoTik+RSfPHhRz87DELrJnLlkLns5BuU5y5Gh"
    "VBPb+FYsST1IJVe7TdJtufupjcpkDYKdL33ly//7rHnHKPtAyAC4AxcLsBbGM9/0XtebN0hHserwO9GNPZRQZYpWp2YNq9kcduxSj6l7QKkHq5pZUr/TdI3dhA3fssZsGo1k"
    "R7LMm33R4tdkC/DoNqiIRt8lN4rcIEVI9ZDWN9oiIjg5xF1ppyjpfFF2U21NILQJ1bimMnbsbeDE+VqqlNmuWX1LtT08Cc6lmMPreocdsOpMUK16VBwkbzlEp1W2G3+DMsY9"
    "afGi3Bse4l74o+dO7IdTYOkg5/EF4l68H5MH6HgdbGx+DTvLAFJ+irebytzdUs/StMbFaZH7QPiTdUnftbwpDnlEOYPsu66WiDdFRXeR1k0mdhBRlyhL6eR2NChPwgIGqIiL"
    "uCbLHSNXO4W8ZjvLUjCNTZbSQYEt23maZDhrI9lGJAF27TSi1wPymBY6Jfrw/lEQciPSqJGPadBmCjkPaMh2nIkZz9BB1uTfZ0ai74YB52ED7cuOXz5bXOTrL9niuRzWeIEz"
    "OYGo/RwKMxS9WrIuyP9UzWTqokbhAf3HsAsJa0e5LQMSzBJnZPmd57v317CIbw8X9/JO75Zj39Dt5kwuAywSs61PVxqazMKIubSo5YoaP4KLlp9a2iLQ+CUCIGFTOQQ0Ql10"
    "lghat/40zaSihlM5EmQOyV0LHKNgD8XMAawDHItLVGBeC3XUqgIolBum1J62wj2cIsAErB0r8OxTsd3xmfICGNAAKTjiEkpYLQxPp8LIJfjoFUKm930KBiJAHwBcgkdlDiBi"
    "G7rhpigZmShLWid5xB1WkBSNn5RjL32ECiAGklOg65fM827LFmYLbog2T239bLdcMdqy8umtdYmuEK/xYQhWhqj4uQ105BMWNAkpKWXDJ2iWZ+RPyukMXwRn5zWY8EAhEc/4"
    "PAaZKQ9DK52mVDcKZRGWKRX2zyZ8iPyiISOAKN7uhjHGq1D3DSXYhL4iNo0M7Gg0yqO6R+1oULvWmK+LWR1aky8guMAG5Dgqu4zvDrOalrGyjdrT8Ek5jor+aSt6nqcAK025"
    "glMcEIVMFsigMDbByzpguZe+1tsoFgkgE1EtHJVNu+keolrfwMoCfCGbANBnSW2khVTfBcX6qklasNQuKNbpXM6OCvmRw5H2UBkzDl4R19GEtKokpRb3Ww3m1Cy8lBjggMqY"
    "YziID2Vhu5EYWDP0gF0xMy7jzcSLiPAwSATCGZjdiZCwJIzdywTRUFPXrybAoIguA/LMYtSekIw8DFRYPkCKlD3q6QxHDd3HHtZwmMeXOMzh8Am4L4ZH5AG6IGdsW864CCeD"
    "siqu0cFOGPUuocauzK4Z9S7D1cavWjkYapEBSqPC3xlxowtC1So8SK8ietSqgM5iD1CEKorrskgxLIgmLOfPkRb7EcfbDwCOClvQr3H5eF3qRwO0DX+EsVnZTzGx4sphU/xr"
    "ZiG9iPH6rcNa0EeTdt6mdlIQ1R4Fz7I+T5fYCfbIQmiBI72m0e8YaAZAYGSq+/agMpNQGaAtvOEkIAy8PH2f3vGawuj1wNsuKiaXCj7BKeA+hSqIQvkI80cYRbuenrNKd0iX"
    "DNChUWWDJ8zZVTgElVerci5J5pJ0Prld8s3KUV+Be5nV8pYKxm2SVw/wO1ZONmxFDCwhaQPZYUF3igZbSbh2nEcyT8pNgmvfws4BWVF/1G2lCOrhka5ZGHfb68k/KQM7cPOh"
    "SHpRU+dGJ/vIVJQuAHAOVdKJXl/4RJWDOeZhJ63aAMxGcNC5iWvjVzQm+8000+vVmGfIyeht+RPKeKVs+9iG0cIydn8IaD0yux211XTbUaZ7p5hQO1Qlq0HxqqLVHvo7/oHp"
    "0a3DRl26C2nuYyrTMFpbf2jmDcg3c5JQySDPS/7omxZuDI3D9Ww6szbOc20UK3WY9m6+Y6oPpWuvxbDKbZzXi0yflM/CeXxsyU8s/WJRHkcwbst3wfgoM4jGVRh1q1y+Phh5"
    "+Zmna+elP5qr8p1XOnLN48uKxeuU9XB6CpJweKn3cdsUS73hoPRfTp5ukiJoEf4+T99DOB05cPWKTQe3BCf6hDyot2FQ8wWPaODbdFEl7iDH+JbYhxFhHs3krW1Y02s5HVFj"
    "pT/sJC+ZKPHbTgPwaLW+DRt1MMjyZaIvzctn8F3FHJlqTEc5xTCs/N1B+asd64n9gMZX5ARsYAk59ym+V9604HwDueEcx01fOg4lG0bhGcs+U9nmsHkUWOISo0bmz8NKC7h1"
    "IR9GJbk/PGtl2S67ZavRes7pc/2XgU0XNtqiGhFGbK5rEJ3XSvM01pPCvib2T3pwWAn8uaa33v9WOoDSfD/g0X7k9+D+3af6j47T4TrxBZQ4pz1DQx2Q3lR1Ra2u61+Ft6Be"
    "WHAwyMu/0UBiZLasWw2GmuTuGx2C6XxOjmuUr2JKbqQBjV92mgGrWb2mqVDf4BBeJTkwwsvOaxbGpZab72Dy7huUDpWmudjITzXaIb2UR2TNrrmo15eN+X01yj0o7h2IwhVk"
    "ai30f2zT8pVmC9Okw7zZNl0ia1Qkap5rcrfMv5UmYxO7oz376d6zWi40sXiWzgKPPO9kCwXWk1xIF7bURe2gVMK22uGblu8S9UidkjG8lzsS+EUrv2X0AL+gzNBS4ylAVyTQ"
    "8VU246B4CdrrpvYuRohALbqJto8PwGgx047vk187fLODLo/FIFQ7aLHpKtoW+zFQ3hifHOd4h7hjBmgKmGXR+4IirQtcjvPwTCZv/NIVA7l2qDBXgryOmk+ePlF05Pv3FF35"
    "i7/yrQX5ht/6fSE/3yi8vHHoyq+ubSFl9uXj5otwL/+Vv5P84zpK6ub3n+ySv/4="
)
