"""The names of all methods of Telegram's Bot API 10.3."""

from __future__ import annotations

from difflib import get_close_matches

__all__ = ["ALIASES", "OFFICIAL", "like_official", "official_name"]

OFFICIAL: tuple[str, ...] = tuple(
    """
    addStickerToSet answerCallbackQuery answerChatJoinRequestQuery answerGuestQuery answerInlineQuery
    answerPreCheckoutQuery answerShippingQuery answerWebAppQuery approveChatJoinRequest approveSuggestedPost
    banChatMember banChatSenderChat close closeForumTopic closeGeneralForumTopic convertGiftToStars copyMessage
    copyMessages createChatInviteLink createChatSubscriptionInviteLink createForumTopic createInvoiceLink
    createNewStickerSet declineChatJoinRequest declineSuggestedPost deleteAllMessageReactions deleteBusinessMessages
    deleteChatPhoto deleteChatStickerSet deleteEphemeralMessage deleteForumTopic deleteMessage deleteMessageReaction
    deleteMessages deleteMyCommands deleteStickerFromSet deleteStickerSet deleteStory deleteWebhook
    editChatInviteLink editChatSubscriptionInviteLink editEphemeralMessageCaption editEphemeralMessageMedia
    editEphemeralMessageReplyMarkup editEphemeralMessageText editForumTopic editGeneralForumTopic editMessageCaption
    editMessageChecklist editMessageLiveLocation editMessageMedia editMessageReplyMarkup editMessageText editStory
    editUserStarSubscription exportChatInviteLink forwardMessage forwardMessages getAvailableGifts
    getBusinessAccountGifts getBusinessAccountStarBalance getBusinessConnection getChat getChatAdministrators
    getChatGifts getChatMember getChatMemberCount getChatMenuButton getCustomEmojiStickers getFile
    getForumTopicIconStickers getGameHighScores getManagedBotAccessSettings getManagedBotToken getMe getMyCommands
    getMyDefaultAdministratorRights getMyDescription getMyName getMyShortDescription getMyStarBalance
    getStarTransactions getStickerSet getUpdates getUserChatBoosts getUserGifts getUserPersonalChatMessages
    getUserProfileAudios getUserProfilePhotos getWebhookInfo giftPremiumSubscription hideGeneralForumTopic leaveChat
    logOut pinChatMessage postStory promoteChatMember readBusinessMessage refundStarPayment
    removeBusinessAccountProfilePhoto removeChatVerification removeMyProfilePhoto removeUserVerification
    reopenForumTopic reopenGeneralForumTopic replaceManagedBotToken replaceStickerInSet repostStory
    restrictChatMember revokeChatInviteLink savePreparedInlineMessage savePreparedKeyboardButton sendAnimation
    sendAudio sendChatAction sendChatJoinRequestWebApp sendChecklist sendContact sendDice sendDocument sendGame
    sendGift sendInvoice sendLivePhoto sendLocation sendMediaGroup sendMessage sendMessageDraft sendPaidMedia
    sendPhoto sendPoll sendRichMessage sendRichMessageDraft sendSticker sendVenue sendVideo sendVideoNote sendVoice
    setBusinessAccountBio setBusinessAccountGiftSettings setBusinessAccountName setBusinessAccountProfilePhoto
    setBusinessAccountUsername setChatAdministratorCustomTitle setChatDescription setChatMemberTag setChatMenuButton
    setChatPermissions setChatPhoto setChatStickerSet setChatTitle setCustomEmojiStickerSetThumbnail setGameScore
    setManagedBotAccessSettings setMessageReaction setMyCommands setMyDefaultAdministratorRights setMyDescription
    setMyName setMyProfilePhoto setMyShortDescription setPassportDataErrors setStickerEmojiList setStickerKeywords
    setStickerMaskPosition setStickerPositionInSet setStickerSetThumbnail setStickerSetTitle setUserEmojiStatus
    setWebhook stopMessageLiveLocation stopPoll transferBusinessAccountStars transferGift unbanChatMember
    unbanChatSenderChat unhideGeneralForumTopic unpinAllChatMessages unpinAllForumTopicMessages
    unpinAllGeneralForumTopicMessages unpinChatMessage upgradeGift uploadStickerFile verifyChat verifyUser
    """.split()  # noqa: SIM905
)
#: Former names that Telegram still accepts.
ALIASES: dict[str, str] = {
    "getChatMembersCount": "getChatMemberCount",
    "kickChatMember": "banChatMember",
    "setStickerSetThumb": "setStickerSetThumbnail",
}
_BY_LOWER_NAME: dict[str, str] = {name.lower(): name for name in (*OFFICIAL, *ALIASES)}


def official_name(name: str) -> str | None:
    """Return the method of this name, in any case; ``None`` if Telegram has no such method."""
    return _BY_LOWER_NAME.get(name.lower())


def like_official(name: str) -> str | None:
    """Return the method whose name resembles this one most, ``None`` if there is none."""
    near = get_close_matches(name.lower().replace("_", ""), _BY_LOWER_NAME, n=1, cutoff=0.8)
    return _BY_LOWER_NAME[near[0]] if near else None
