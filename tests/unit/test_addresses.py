import pytest

from turnstore_service.operations.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50051", Address("127.0.0.1", 50051)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("localhost:9464", Address("localhost", 9464)),
        ("[::1]:50051", Address("::1", 50051)),
    ],
)
def test_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "50051",
            ":50051",
            "localhost",
            "localhost:",
            "localhost:http",
            "localhost:65536",
            "localhost:-1",
        ),
        *("::1:50051", "[::1]", "a b:1", "http://localhost:1", "localhost:٣"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must "):
        parse_address(text)
