"""Values and keys as text: plain JSON where JSON is exact, tagged JSON otherwise, never pickle."""

from stepwell.codec.keys import address_of, check_name, decode_key, decode_namespace, encode_key, encode_namespace
from stepwell.codec.seal import Seal
from stepwell.codec.secret import Secret
from stepwell.codec.types import ensure_registered, record_type

__all__ = [
    "Seal",
    "Secret",
    "address_of",
    "check_name",
    "decode_key",
    "decode_namespace",
    "encode_key",
    "encode_namespace",
    "ensure_registered",
    "record_type",
]
