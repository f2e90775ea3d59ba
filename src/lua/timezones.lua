-- Time zones by the numbers MessagePack carries: abbreviations, zones of the IANA database, other names of zones.
--
-- The numbers are part of Tarantool's protocol: abbreviations have numbers of their own; the zones of IANA's release 2022a
-- are counted from 672 on, in the order of their names. Source: the table of tarantool-python 1.3.0 (BSD-2-Clause,
-- copyright of its authors) and IANA's tzdata 2022a (public domain).

local FIRST_ZONE = 672

-- number:name:minutes east of UTC, or `?` where one abbreviation means several zones.
local ABBREVIATIONS = [[
1:A:60 2:B:120 3:C:180 4:D:240 5:E:300 6:F:360 7:G:420 8:H:480 9:I:540 10:K:600 11:L:660 12:M:720 13:N:-60 14:O:-120
15:P:-180 16:Q:-240 17:R:-300 18:S:-360 19:T:-420 20:U:-480 21:V:-540 22:W:-600 23:X:-660 24:Y:-720 25:Z:0 32:AT:?
40:BT:? 48:CT:? 56:ET:? 64:GT:0 72:IT:? 80:KT:540 88:MT:? 96:PT:? 104:ST:780 112:UT:0 120:WT:0 128:ACT:? 129:ADT:?
130:AET:? 131:AFT:270 132:AMT:? 133:AoE:-720 134:ART:-180 135:AST:? 136:AZT:240 144:BDT:? 145:BNT:480 146:BOT:-240
147:BRT:-180 148:BST:? 149:BTT:360 152:CAT:120 153:CCT:390 154:CDT:? 155:CET:60 156:CIT:-300 157:CKT:-600
158:CLT:-180 159:COT:-300 160:CST:? 161:CVT:-60 162:CXT:420 168:EAT:180 169:ECT:? 170:EDT:? 171:EET:120 172:EGT:-60
173:EST:? 176:FET:180 177:FJT:720 178:FKT:-240 179:FNT:-120 184:GET:240 185:GFT:-180 186:GMT:0 187:GST:?
188:GYT:-240 192:HAA:-180 193:HAC:-300 194:HAE:-240 195:HAP:-420 196:HAR:-360 197:HAT:-90 198:HDT:-540 199:HKT:480
200:HLV:-210 201:HNA:-240 202:HNC:-360 203:HNE:-300 204:HNP:-480 205:HNR:-420 206:HNT:-150 207:HST:-600 208:ICT:420
209:IDT:? 210:IOT:360 211:IST:? 216:JST:540 224:KGT:360 225:KIT:300 226:KST:540 232:MCK:180 233:MDT:-360 234:MEZ:60
235:MHT:720 236:MMT:390 237:MSD:240 238:MSK:180 239:MST:? 240:MUT:240 241:MVT:300 242:MYT:480 248:NCT:660
249:NDT:-90 250:NFT:660 251:NPT:345 252:NRT:720 253:NST:-150 254:NUT:-660 256:OEZ:120 264:PDT:-420 265:PET:-300
266:PGT:600 267:PHT:480 268:PKT:300 269:PST:? 270:PWT:540 271:PYT:? 272:RET:240 280:SBT:660 281:SCT:240 282:SGT:480
283:SRT:-180 284:SST:? 288:TFT:300 289:TJT:300 290:TKT:780 291:TLT:540 292:TMT:300 293:TOT:780 294:TRT:180
295:TVT:720 296:UTC:0 297:UYT:-180 298:UZT:300 304:VET:-210 305:VUT:660 312:WAT:? 313:WDT:540 314:WET:0 315:WEZ:0
316:WFT:720 317:WGT:-180 318:WIB:420 319:WIT:540 320:WST:? 328:ACDT:630 329:ACST:570 330:ADST:? 331:AEDT:660
332:AEST:600 333:AKDT:-480 334:AKST:-540 335:ALMT:360 336:AMDT:300 337:AMST:? 338:ANAT:720 339:AQTT:300 340:AWDT:540
341:AWST:480 342:AZOT:-60 343:AZST:300 344:BDST:60 345:BRST:-120 352:CAST:480 353:CDST:? 354:CEDT:120 355:CEST:120
356:CHOT:480 357:ChST:600 358:CHUT:600 359:CIST:-300 360:CLDT:-180 361:CLST:? 368:DAVT:420 369:DDUT:600
376:EADT:-300 377:EAST:-300 378:ECST:120 379:EDST:? 380:EEDT:180 381:EEST:180 382:EGST:0 384:FJDT:780 385:FJST:780
386:FKDT:-180 387:FKST:? 392:GALT:-360 393:GAMT:-540 394:GILT:720 400:HADT:-540 401:HAST:-600 402:HOVT:420
408:IRDT:270 409:IRKT:480 410:IRST:? 416:KOST:660 417:KRAT:420 418:KUYT:240 424:LHDT:660 425:LHST:630 426:LINT:840
432:MAGT:600 433:MART:-510 434:MAWT:300 435:MDST:-360 436:MESZ:120 440:NFDT:720 441:NOVT:360 442:NZDT:780
443:NZST:720 448:OESZ:180 449:OMST:360 450:ORAT:300 456:PDST:-420 457:PETT:720 458:PHOT:780 459:PMDT:-120
460:PMST:-180 461:PONT:660 462:PYST:? 464:QYZT:360 472:ROTT:-180 480:SAKT:600 481:SAMT:240 482:SAST:120 483:SRET:660
484:SYOT:180 488:TAHT:-600 489:TOST:840 496:ULAT:480 497:UYST:-120 504:VLAT:600 505:VOST:360 512:WAKT:720
513:WAST:120 514:WEDT:60 515:WEST:60 516:WESZ:60 517:WGST:-120 518:WITA:480 520:YAKT:540 521:YAPT:600 522:YEKT:300
528:ACWST:525 529:ANAST:720 530:AZODT:0 531:AZOST:? 536:CHADT:825 537:CHAST:765 538:CHODT:540 539:CHOST:540
540:CIDST:-240 544:EASST:-300 545:EFATE:660 552:HOVDT:480 553:HOVST:480 560:IRKST:540 568:KRAST:480 576:MAGST:720
584:NACDT:-300 585:NACST:-360 586:NAEDT:-240 587:NAEST:-300 588:NAMDT:-360 589:NAMST:-420 590:NAPDT:-420
591:NAPST:-480 592:NOVST:420 600:OMSST:420 608:PETST:720 616:SAMST:240 624:ULAST:540 632:VLAST:660 640:WARST:-180
648:YAKST:600 649:YEKST:360 656:CHODST:540 664:HOVDST:480
]]

local ZONES = [[
Africa/Abidjan Africa/Algiers Africa/Bissau Africa/Cairo Africa/Casablanca Africa/Ceuta Africa/El_Aaiun
Africa/Johannesburg Africa/Juba Africa/Khartoum Africa/Lagos Africa/Maputo Africa/Monrovia Africa/Nairobi
Africa/Ndjamena Africa/Sao_Tome Africa/Tripoli Africa/Tunis Africa/Windhoek America/Adak America/Anchorage
America/Araguaina America/Argentina/Buenos_Aires America/Argentina/Catamarca America/Argentina/Cordoba
America/Argentina/Jujuy America/Argentina/La_Rioja America/Argentina/Mendoza America/Argentina/Rio_Gallegos
America/Argentina/Salta America/Argentina/San_Juan America/Argentina/San_Luis America/Argentina/Tucuman
America/Argentina/Ushuaia America/Asuncion America/Bahia America/Bahia_Banderas America/Barbados America/Belem
America/Belize America/Boa_Vista America/Bogota America/Boise America/Cambridge_Bay America/Campo_Grande
America/Cancun America/Caracas America/Cayenne America/Chicago America/Chihuahua America/Costa_Rica America/Cuiaba
America/Danmarkshavn America/Dawson America/Dawson_Creek America/Denver America/Detroit America/Edmonton
America/Eirunepe America/El_Salvador America/Fort_Nelson America/Fortaleza America/Glace_Bay America/Goose_Bay
America/Grand_Turk America/Guatemala America/Guayaquil America/Guyana America/Halifax America/Havana
America/Hermosillo America/Indiana/Indianapolis America/Indiana/Knox America/Indiana/Marengo
America/Indiana/Petersburg America/Indiana/Tell_City America/Indiana/Vevay America/Indiana/Vincennes
America/Indiana/Winamac America/Inuvik America/Iqaluit America/Jamaica America/Juneau America/Kentucky/Louisville
America/Kentucky/Monticello America/La_Paz America/Lima America/Los_Angeles America/Maceio America/Managua
America/Manaus America/Martinique America/Matamoros America/Mazatlan America/Menominee America/Merida
America/Metlakatla America/Mexico_City America/Miquelon America/Moncton America/Monterrey America/Montevideo
America/New_York America/Nipigon America/Nome America/Noronha America/North_Dakota/Beulah
America/North_Dakota/Center America/North_Dakota/New_Salem America/Nuuk America/Ojinaga America/Panama
America/Pangnirtung America/Paramaribo America/Phoenix America/Port-au-Prince America/Porto_Velho
America/Puerto_Rico America/Punta_Arenas America/Rainy_River America/Rankin_Inlet America/Recife America/Regina
America/Resolute America/Rio_Branco America/Santarem America/Santiago America/Santo_Domingo America/Sao_Paulo
America/Scoresbysund America/Sitka America/St_Johns America/Swift_Current America/Tegucigalpa America/Thule
America/Thunder_Bay America/Tijuana America/Toronto America/Vancouver America/Whitehorse America/Winnipeg
America/Yakutat America/Yellowknife Antarctica/Casey Antarctica/Davis Antarctica/Macquarie Antarctica/Mawson
Antarctica/Palmer Antarctica/Rothera Antarctica/Troll Antarctica/Vostok Asia/Almaty Asia/Amman Asia/Anadyr
Asia/Aqtau Asia/Aqtobe Asia/Ashgabat Asia/Atyrau Asia/Baghdad Asia/Baku Asia/Bangkok Asia/Barnaul Asia/Beirut
Asia/Bishkek Asia/Brunei Asia/Chita Asia/Choibalsan Asia/Colombo Asia/Damascus Asia/Dhaka Asia/Dili Asia/Dubai
Asia/Dushanbe Asia/Famagusta Asia/Gaza Asia/Hebron Asia/Ho_Chi_Minh Asia/Hong_Kong Asia/Hovd Asia/Irkutsk
Asia/Jakarta Asia/Jayapura Asia/Jerusalem Asia/Kabul Asia/Kamchatka Asia/Karachi Asia/Kathmandu Asia/Khandyga
Asia/Kolkata Asia/Krasnoyarsk Asia/Kuala_Lumpur Asia/Kuching Asia/Macau Asia/Magadan Asia/Makassar Asia/Manila
Asia/Nicosia Asia/Novokuznetsk Asia/Novosibirsk Asia/Omsk Asia/Oral Asia/Pontianak Asia/Pyongyang Asia/Qatar
Asia/Qostanay Asia/Qyzylorda Asia/Riyadh Asia/Sakhalin Asia/Samarkand Asia/Seoul Asia/Shanghai Asia/Singapore
Asia/Srednekolymsk Asia/Taipei Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Thimphu Asia/Tokyo Asia/Tomsk
Asia/Ulaanbaatar Asia/Urumqi Asia/Ust-Nera Asia/Vladivostok Asia/Yakutsk Asia/Yangon Asia/Yekaterinburg Asia/Yerevan
Atlantic/Azores Atlantic/Bermuda Atlantic/Canary Atlantic/Cape_Verde Atlantic/Faroe Atlantic/Madeira
Atlantic/Reykjavik Atlantic/South_Georgia Atlantic/Stanley Australia/Adelaide Australia/Brisbane
Australia/Broken_Hill Australia/Darwin Australia/Eucla Australia/Hobart Australia/Lindeman Australia/Lord_Howe
Australia/Melbourne Australia/Perth Australia/Sydney Etc/GMT Etc/UTC Europe/Amsterdam Europe/Andorra
Europe/Astrakhan Europe/Athens Europe/Belgrade Europe/Berlin Europe/Brussels Europe/Bucharest Europe/Budapest
Europe/Chisinau Europe/Copenhagen Europe/Dublin Europe/Gibraltar Europe/Helsinki Europe/Istanbul Europe/Kaliningrad
Europe/Kiev Europe/Kirov Europe/Lisbon Europe/London Europe/Luxembourg Europe/Madrid Europe/Malta Europe/Minsk
Europe/Monaco Europe/Moscow Europe/Oslo Europe/Paris Europe/Prague Europe/Riga Europe/Rome Europe/Samara
Europe/Saratov Europe/Simferopol Europe/Sofia Europe/Stockholm Europe/Tallinn Europe/Tirane Europe/Ulyanovsk
Europe/Uzhgorod Europe/Vienna Europe/Vilnius Europe/Volgograd Europe/Warsaw Europe/Zaporozhye Europe/Zurich
Indian/Chagos Indian/Christmas Indian/Cocos Indian/Kerguelen Indian/Mahe Indian/Maldives Indian/Mauritius
Indian/Reunion Pacific/Apia Pacific/Auckland Pacific/Bougainville Pacific/Chatham Pacific/Chuuk Pacific/Easter
Pacific/Efate Pacific/Fakaofo Pacific/Fiji Pacific/Funafuti Pacific/Galapagos Pacific/Gambier Pacific/Guadalcanal
Pacific/Guam Pacific/Honolulu Pacific/Kanton Pacific/Kiritimati Pacific/Kosrae Pacific/Kwajalein Pacific/Majuro
Pacific/Marquesas Pacific/Nauru Pacific/Niue Pacific/Norfolk Pacific/Noumea Pacific/Pago_Pago Pacific/Palau
Pacific/Pitcairn Pacific/Pohnpei Pacific/Port_Moresby Pacific/Rarotonga Pacific/Tahiti Pacific/Tarawa
Pacific/Tongatapu Pacific/Wake Pacific/Wallis
]]

-- other name=name
local ALIASES = [[
Africa/Accra=Africa/Abidjan Africa/Addis_Ababa=Africa/Nairobi Africa/Asmara=Africa/Nairobi
Africa/Asmera=Africa/Nairobi Africa/Bamako=Africa/Abidjan Africa/Bangui=Africa/Lagos Africa/Banjul=Africa/Abidjan
Africa/Blantyre=Africa/Maputo Africa/Brazzaville=Africa/Lagos Africa/Bujumbura=Africa/Maputo
Africa/Conakry=Africa/Abidjan Africa/Dakar=Africa/Abidjan Africa/Dar_es_Salaam=Africa/Nairobi
Africa/Djibouti=Africa/Nairobi Africa/Douala=Africa/Lagos Africa/Freetown=Africa/Abidjan
Africa/Gaborone=Africa/Maputo Africa/Harare=Africa/Maputo Africa/Kampala=Africa/Nairobi Africa/Kigali=Africa/Maputo
Africa/Kinshasa=Africa/Lagos Africa/Libreville=Africa/Lagos Africa/Lome=Africa/Abidjan Africa/Luanda=Africa/Lagos
Africa/Lubumbashi=Africa/Maputo Africa/Lusaka=Africa/Maputo Africa/Malabo=Africa/Lagos
Africa/Maseru=Africa/Johannesburg Africa/Mbabane=Africa/Johannesburg Africa/Mogadishu=Africa/Nairobi
Africa/Niamey=Africa/Lagos Africa/Nouakchott=Africa/Abidjan Africa/Ouagadougou=Africa/Abidjan
Africa/Porto-Novo=Africa/Lagos Africa/Timbuktu=Africa/Abidjan America/Anguilla=America/Puerto_Rico
America/Antigua=America/Puerto_Rico America/Argentina/ComodRivadavia=America/Argentina/Catamarca
America/Aruba=America/Puerto_Rico America/Atikokan=America/Panama America/Atka=America/Adak
America/Blanc-Sablon=America/Puerto_Rico America/Buenos_Aires=America/Argentina/Buenos_Aires
America/Catamarca=America/Argentina/Catamarca America/Cayman=America/Panama America/Coral_Harbour=America/Panama
America/Cordoba=America/Argentina/Cordoba America/Creston=America/Phoenix America/Curacao=America/Puerto_Rico
America/Dominica=America/Puerto_Rico America/Ensenada=America/Tijuana
America/Fort_Wayne=America/Indiana/Indianapolis America/Godthab=America/Nuuk America/Grenada=America/Puerto_Rico
America/Guadeloupe=America/Puerto_Rico America/Indianapolis=America/Indiana/Indianapolis
America/Jujuy=America/Argentina/Jujuy America/Knox_IN=America/Indiana/Knox America/Kralendijk=America/Puerto_Rico
America/Louisville=America/Kentucky/Louisville America/Lower_Princes=America/Puerto_Rico
America/Marigot=America/Puerto_Rico America/Mendoza=America/Argentina/Mendoza America/Montreal=America/Toronto
America/Montserrat=America/Puerto_Rico America/Nassau=America/Toronto America/Port_of_Spain=America/Puerto_Rico
America/Porto_Acre=America/Rio_Branco America/Rosario=America/Argentina/Cordoba America/Santa_Isabel=America/Tijuana
America/Shiprock=America/Denver America/St_Barthelemy=America/Puerto_Rico America/St_Kitts=America/Puerto_Rico
America/St_Lucia=America/Puerto_Rico America/St_Thomas=America/Puerto_Rico America/St_Vincent=America/Puerto_Rico
America/Tortola=America/Puerto_Rico America/Virgin=America/Puerto_Rico
Antarctica/DumontDUrville=Pacific/Port_Moresby Antarctica/McMurdo=Pacific/Auckland
Antarctica/South_Pole=Pacific/Auckland Antarctica/Syowa=Asia/Riyadh Arctic/Longyearbyen=Europe/Oslo
Asia/Aden=Asia/Riyadh Asia/Ashkhabad=Asia/Ashgabat Asia/Bahrain=Asia/Qatar Asia/Calcutta=Asia/Kolkata
Asia/Chongqing=Asia/Shanghai Asia/Chungking=Asia/Shanghai Asia/Dacca=Asia/Dhaka Asia/Harbin=Asia/Shanghai
Asia/Istanbul=Europe/Istanbul Asia/Kashgar=Asia/Urumqi Asia/Katmandu=Asia/Kathmandu Asia/Kuwait=Asia/Riyadh
Asia/Macao=Asia/Macau Asia/Muscat=Asia/Dubai Asia/Phnom_Penh=Asia/Bangkok Asia/Rangoon=Asia/Yangon
Asia/Saigon=Asia/Ho_Chi_Minh Asia/Tel_Aviv=Asia/Jerusalem Asia/Thimbu=Asia/Thimphu Asia/Ujung_Pandang=Asia/Makassar
Asia/Ulan_Bator=Asia/Ulaanbaatar Asia/Vientiane=Asia/Bangkok Atlantic/Faeroe=Atlantic/Faroe
Atlantic/Jan_Mayen=Europe/Oslo Atlantic/St_Helena=Africa/Abidjan Australia/ACT=Australia/Sydney
Australia/Canberra=Australia/Sydney Australia/Currie=Australia/Hobart Australia/LHI=Australia/Lord_Howe
Australia/NSW=Australia/Sydney Australia/North=Australia/Darwin Australia/Queensland=Australia/Brisbane
Australia/South=Australia/Adelaide Australia/Tasmania=Australia/Hobart Australia/Victoria=Australia/Melbourne
Australia/West=Australia/Perth Australia/Yancowinna=Australia/Broken_Hill Brazil/Acre=America/Rio_Branco
Brazil/DeNoronha=America/Noronha Brazil/East=America/Sao_Paulo Brazil/West=America/Manaus
Canada/Atlantic=America/Halifax Canada/Central=America/Winnipeg Canada/Eastern=America/Toronto
Canada/Mountain=America/Edmonton Canada/Newfoundland=America/St_Johns Canada/Pacific=America/Vancouver
Canada/Saskatchewan=America/Regina Canada/Yukon=America/Whitehorse Chile/Continental=America/Santiago
Chile/EasterIsland=Pacific/Easter Cuba=America/Havana Egypt=Africa/Cairo Eire=Europe/Dublin Etc/GMT+0=Etc/GMT
Etc/GMT-0=Etc/GMT Etc/GMT0=Etc/GMT Etc/Greenwich=Etc/GMT Etc/UCT=Etc/UTC Etc/Universal=Etc/UTC Etc/Zulu=Etc/UTC
Europe/Belfast=Europe/London Europe/Bratislava=Europe/Prague Europe/Busingen=Europe/Zurich
Europe/Guernsey=Europe/London Europe/Isle_of_Man=Europe/London Europe/Jersey=Europe/London
Europe/Ljubljana=Europe/Belgrade Europe/Mariehamn=Europe/Helsinki Europe/Nicosia=Asia/Nicosia
Europe/Podgorica=Europe/Belgrade Europe/San_Marino=Europe/Rome Europe/Sarajevo=Europe/Belgrade
Europe/Skopje=Europe/Belgrade Europe/Tiraspol=Europe/Chisinau Europe/Vaduz=Europe/Zurich Europe/Vatican=Europe/Rome
Europe/Zagreb=Europe/Belgrade GB=Europe/London GB-Eire=Europe/London GMT+0=Etc/GMT GMT-0=Etc/GMT GMT0=Etc/GMT
Greenwich=Etc/GMT Hongkong=Asia/Hong_Kong Iceland=Atlantic/Reykjavik Indian/Antananarivo=Africa/Nairobi
Indian/Comoro=Africa/Nairobi Indian/Mayotte=Africa/Nairobi Iran=Asia/Tehran Israel=Asia/Jerusalem
Jamaica=America/Jamaica Japan=Asia/Tokyo Kwajalein=Pacific/Kwajalein Libya=Africa/Tripoli
Mexico/BajaNorte=America/Tijuana Mexico/BajaSur=America/Mazatlan Mexico/General=America/Mexico_City
NZ=Pacific/Auckland NZ-CHAT=Pacific/Chatham Navajo=America/Denver PRC=Asia/Shanghai Pacific/Enderbury=Pacific/Kanton
Pacific/Johnston=Pacific/Honolulu Pacific/Midway=Pacific/Pago_Pago Pacific/Ponape=Pacific/Pohnpei
Pacific/Saipan=Pacific/Guam Pacific/Samoa=Pacific/Pago_Pago Pacific/Truk=Pacific/Chuuk Pacific/Yap=Pacific/Chuuk
Poland=Europe/Warsaw Portugal=Europe/Lisbon ROC=Asia/Taipei ROK=Asia/Seoul Singapore=Asia/Singapore
Turkey=Europe/Istanbul UCT=Etc/UTC US/Alaska=America/Anchorage US/Aleutian=America/Adak US/Arizona=America/Phoenix
US/Central=America/Chicago US/East-Indiana=America/Indiana/Indianapolis US/Eastern=America/New_York
US/Hawaii=Pacific/Honolulu US/Indiana-Starke=America/Indiana/Knox US/Michigan=America/Detroit
US/Mountain=America/Denver US/Pacific=America/Los_Angeles US/Samoa=Pacific/Pago_Pago Universal=Etc/UTC
W-SU=Europe/Moscow Zulu=Etc/UTC
]]

-- `by_index[number]` and `by_name[name in lower case]` give the same kind of record: index, name, offset of an
-- abbreviation (minutes) or the zone's name in the IANA database, ambiguous.
local by_index, by_name = {}, {}
-- What `datetime.TZ` shows: names by number and numbers by name.
local public = {}

local function add(index, name, record)
    record.index, record.name = index, name
    by_index[index], by_name[name:lower()] = record, record
    public[index], public[name] = name, index
end

for index, name, offset in ABBREVIATIONS:gmatch('(%d+):(%a+):(%S+)') do
    add(tonumber(index), name, { offset = tonumber(offset), ambiguous = offset == '?' })
end
local index = FIRST_ZONE
for name in ZONES:gmatch('%S+') do
    add(index, name, { zone = name })
    index = index + 1
end
for alias, name in ALIASES:gmatch('([^%s=]+)=(%S+)') do
    local record = by_name[name:lower()]
    by_name[alias:lower()] = record
    public[alias] = record.index
end

return { by_index = by_index, by_name = by_name, public = public }
