from harness.tracking.owner import Owner, current_owner, is_alive


def changed(**facts: object) -> Owner:
    return current_owner().model_copy(update=facts)


def test_this_process_is_alive() -> None:
    assert is_alive(current_owner()) is True


def test_a_process_id_that_is_free_is_gone() -> None:
    assert is_alive(changed(pid=2**22 + 1)) is False


def test_a_process_id_taken_by_another_process_is_gone() -> None:
    assert is_alive(changed(started="1")) is False


def test_nothing_outlives_a_reboot() -> None:
    assert is_alive(changed(boot_id="another")) is False


def test_another_host_cannot_be_asked() -> None:
    assert is_alive(changed(host="elsewhere")) is None
